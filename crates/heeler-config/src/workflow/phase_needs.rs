//! Needs of workflows and phases that their agents must meet: network, tools, isolation, access to
//! GitHub.
//!
//! A need that an agent cannot meet is refused, or skips the phase where Last Light does so. Nothing
//! is checked of a frozen workflow, which was valid once, except for what skips a phase. Start at
//! [`WorkflowLoader::check_phase_needs`].

use super::definition::{
    GitAccessProfile, INTENT_CHARS_MAX, RunClonePolicy, WorkflowGithubRules, WorkflowIntent,
};
use super::keys::WorkflowKeys;
use super::keys::{PhaseImage, PhaseKeys, PhaseType, RequiredIsolation, RunDirectoryPolicy};
use super::parse::WorkflowLoader;
use super::template::WorkflowExpression;
use crate::effort::ReasoningEffort;
use crate::github::{GithubPermission, GithubPermissionLevel};
use crate::reader::SourceSpan;
use crate::runtime::RuntimeType;
use crate::schedule::{ScheduleConfig, ScheduleTrigger};
use crate::value::SpannedValue;
use crate::{AgentConfig, AgentName, NetworkMode};

/// Claude's tool for searches of the web.
const SEARCH_TOOL: &str = "WebSearch";

impl WorkflowLoader<'_> {
    /// Checks what a phase needs of its agent. Returns a condition that always holds if the phase is
    /// skipped because the agent runs elsewhere than the phase requires.
    pub(super) fn check_phase_needs(
        &mut self,
        keys: &PhaseKeys,
        agent: Option<&AgentName>,
    ) -> Option<WorkflowExpression> {
        let agents = self.context.agents;
        let agent = agents.iter().find(|it| Some(&it.name) == agent)?;
        if !self.context.is_frozen && keys.kind.value == PhaseType::Agent {
            self.check_network(keys.unrestricted_egress.as_ref(), agent);
            self.check_web_search(keys.web_search.as_ref(), agent);
            self.check_effort(keys, agent);
        }
        let (at, why) = skip_reason(keys, agent)?;
        let message = format!("the phase `{}` is always skipped", keys.name.value);
        let help = "give the phase an `agent` for which it holds, or remove the key";
        self.reader.warn(at, message).expected(why.clone()).help(help);
        Some(WorkflowExpression::always(why))
    }

    fn check_network(&mut self, wanted: Option<&SpannedValue<bool>>, agent: &AgentConfig) {
        let Some(SpannedValue { value: true, at, .. }) = wanted else { return };
        let is_open = agent.isolation_settings().is_none()
            || agent.container().is_some_and(|docker| docker.network != NetworkMode::None);
        if is_open {
            return;
        }
        let message = format!(
            "the phase needs access to every host, and the agent `{}` reaches only listed hosts",
            agent.name
        );
        let help = "give the phase an `agent` in a container with `docker: {network: bridge}` or \
                    without a sandbox; or remove the key, if the hosts of `sandbox.network` are enough";
        self.reader.error(*at, message).expected("it cannot be granted").help(help);
    }

    fn check_web_search(&mut self, wanted: Option<&SpannedValue<bool>>, agent: &AgentConfig) {
        let Some(SpannedValue { value: true, at, .. }) = wanted else { return };
        if !matches!(agent.runtime.kind(), RuntimeType::Sdk | RuntimeType::Cli) {
            // Other agents have settings of their own for it.
            return;
        }
        let lists = [&agent.tools, &agent.allowed_tools];
        let mut lists = lists.into_iter().flatten();
        let is_excluded = lists.any(|list| !list.iter().any(|tool| tool == SEARCH_TOOL));
        if !is_excluded && !agent.denied_tools.iter().any(|tool| tool == SEARCH_TOOL) {
            return;
        }
        let message = format!(
            "the phase searches the web, and the tool lists of the agent `{}` exclude `{SEARCH_TOOL}`",
            agent.name
        );
        let help = format!("add `{SEARCH_TOOL}` to the lists of the agent, or remove the key");
        self.reader.error(*at, message).expected("it cannot be granted").help(help);
    }

    /// Checks words that no template fills in, and agents without a model.
    fn check_effort(&mut self, keys: &PhaseKeys, agent: &AgentConfig) {
        let fix = keys.review.as_ref().map(|it| &it.value.on_request_changes);
        let written = [keys.variant.as_ref(), fix.and_then(|fix| fix.fix_variant.as_ref())];
        for effort in written.into_iter().flatten() {
            let text = effort.value.as_str();
            let is_constant = !text.contains('{') && !text.trim().is_empty();
            if is_constant && ReasoningEffort::from_variant(text).is_none() {
                let message = format!("unknown reasoning effort `{text}`");
                let expected = format!("expected one of {}", ReasoningEffort::VARIANTS.join(", "));
                self.reader.error(effort.at, message).expected(expected);
            }
        }
        let runtime = agent.runtime.kind();
        let has_effort = matches!(
            runtime,
            RuntimeType::Sdk | RuntimeType::Cli | RuntimeType::Codex | RuntimeType::Qwen
        );
        if let (Some(effort), false) = (&keys.variant, has_effort) {
            let message = format!(
                "the agent `{}` has no reasoning effort, because it has `runtime: {runtime}`",
                agent.name
            );
            self.reader.warn(effort.at, message).expected("the phase runs without it");
        }
    }

    /// Returns the rules about GitHub of a workflow, and refuses settings of Last Light that nothing
    /// here can honour.
    pub(super) fn github_rules(
        &mut self,
        keys: &WorkflowKeys,
        agents: &[&AgentName],
    ) -> WorkflowGithubRules {
        if !self.context.is_frozen {
            self.check_scope(keys);
            if let Some(access) = &keys.git_access {
                self.check_git_access(access, agents);
            }
        }
        WorkflowGithubRules {
            is_pr_scoped: keys.pr_scoped,
            access: keys.git_access.as_ref().map(|access| access.value),
            has_checklist: keys.status_checklist,
        }
    }

    fn check_scope(&mut self, keys: &WorkflowKeys) {
        if let Some(SpannedValue { value: true, at, .. }) = &keys.pr_fix_shaped
            && !keys.pr_scoped
        {
            let message = "`pr_fix_shaped` needs `pr_scoped: true`".to_owned();
            let expected = "two runs could change one branch at once";
            self.reader.error(*at, message).expected(expected);
        }
    }

    /// Returns the clone that each run needs. Refuses agents without a repository to clone.
    pub(super) fn run_clone(
        &mut self,
        written: Option<&SpannedValue<RunDirectoryPolicy>>,
        agents: &[&AgentName],
    ) -> Option<RunClonePolicy> {
        let SpannedValue { value, at, .. } = written?;
        let policy = match value {
            RunDirectoryPolicy::PerRun => RunClonePolicy::PerRun,
            RunDirectoryPolicy::PerTargetRecreate => RunClonePolicy::PerTarget,
            RunDirectoryPolicy::PerTargetReuse => return None,
        };
        let is_used = |agent: &&AgentConfig| agents.contains(&&agent.name);
        let mut used = self.context.agents.iter().filter(is_used);
        if let (Some(agent), false) = (used.find(|it| it.repo.is_none()), self.context.is_frozen) {
            let message = format!(
                "`workspace: {value}` needs a clone for each run, and the agent `{}` has no `repo`",
                agent.name
            );
            let help = "set `repo` of the agent; or `workspace: per-target-reuse`, and let the first phase \
                        prepare the directory, such as by `git switch` and `git clean`";
            self.reader.error(*at, message).expected("nothing can be cloned").help(help);
        }
        Some(policy)
    }

    /// Returns the word by which a text of a person starts the workflow. Warns if no schedule listens.
    pub(super) fn intent(&mut self, keys: &WorkflowKeys) -> Option<WorkflowIntent> {
        let written = keys.classification.as_ref();
        let intent = written.and_then(|it| it.value["intent"].as_str().map(|word| (it.at, word)));
        let intent = intent.and_then(|(at, word)| {
            let parsed = word.parse();
            if parsed.is_err() {
                let message = format!("`{word}` cannot be the intent of a text");
                let expected =
                    format!("a word of at most {INTENT_CHARS_MAX} letters, digits and hyphens");
                self.reader.error(at, message).expected(expected);
            }
            parsed.ok()
        });
        if !self.context.is_frozen {
            self.check_starters(keys, intent.is_some());
        }
        intent
    }

    /// Warns if Last Light would start the workflow by a text of a person, and nothing here does.
    fn check_starters(&mut self, keys: &WorkflowKeys, has_intent: bool) {
        let places = [keys.classification.as_ref(), keys.chat.as_ref()];
        let Some(at) = places.into_iter().flatten().map(|it| it.at).next() else { return };
        let starts = |schedule: &ScheduleConfig| {
            let ScheduleTrigger::Webhook(rules) = &schedule.trigger else { return false };
            let workflow = schedule.workflow.as_ref().map(|it| &it.workflow);
            workflow == Some(&keys.name.value) || (rules.intents && has_intent)
        };
        if self.context.agents.iter().any(|agent| agent.schedules.iter().any(starts)) {
            return;
        }
        let name = &keys.name.value;
        let message = format!("no text of a person starts the workflow `{name}`");
        let help = format!(
            "add a schedule with `type: webhook`, `events: [issue_comment]`, `mention` and `workflow: {name}` \
             to an agent, or one with `intents: true`; `heeler workflow run {name}` starts it too"
        );
        self.reader.warn(at, message).expected("no schedule listens").help(help);
    }

    /// Refuses agents whose token may do less than the workflow needs. Agents without a token from the
    /// config have access of their own.
    fn check_git_access(&mut self, access: &SpannedValue<GitAccessProfile>, agents: &[&AgentName]) {
        for agent in self.context.agents.iter().filter(|it| agents.contains(&&it.name)) {
            if agent.github_token.is_empty() {
                continue;
            }
            let lacks = |name: &&&str| {
                let is_it = |it: &GithubPermission| {
                    it.name == **name && it.level == GithubPermissionLevel::Write
                };
                !agent.github_token.iter().any(is_it)
            };
            if let Some(missing) = access.value.written_permissions().iter().find(lacks) {
                let message = format!(
                    "`git_access: {}` needs `{missing}: write`, which the token of the agent `{}` lacks",
                    access.value, agent.name
                );
                let help =
                    format!("add it to `github.agent_tokens.{}` in the fleet file", agent.name);
                self.reader.error(access.at, message).expected("it cannot be granted").help(help);
            }
        }
    }
}

impl GitAccessProfile {
    /// Returns the permissions of GitHub that the profile needs to write.
    fn written_permissions(self) -> &'static [&'static str] {
        match self {
            GitAccessProfile::Read => &[],
            GitAccessProfile::IssuesWrite => &["issues"],
            GitAccessProfile::ReviewWrite => &["pull_requests"],
            GitAccessProfile::RepoWrite => &["contents"],
        }
    }

    /// Lowers permissions to those of the profile.
    pub fn limit(self, permissions: &[GithubPermission]) -> Vec<GithubPermission> {
        let may_write = |name: &str| match self {
            GitAccessProfile::Read => false,
            GitAccessProfile::IssuesWrite | GitAccessProfile::ReviewWrite => {
                matches!(name, "issues" | "pull_requests")
            }
            GitAccessProfile::RepoWrite => true,
        };
        let limited = permissions.iter().cloned().map(|mut permission| {
            if !may_write(&permission.name) {
                permission.level = GithubPermissionLevel::Read;
            }
            permission
        });
        limited.collect()
    }
}

/// Returns the reason why a phase cannot run where its agent runs, as Last Light sees it.
fn skip_reason(keys: &PhaseKeys, agent: &AgentConfig) -> Option<(SourceSpan, String)> {
    let name = &agent.name;
    if let Some(required) = &keys.requires_sandbox {
        let has_container = agent.container().is_some();
        let has_sandbox = !has_container && agent.isolation_settings().is_some();
        let (is_met, place) = match required.value {
            RequiredIsolation::Docker => (has_container, "no container"),
            RequiredIsolation::Gondolin => (has_sandbox, "no sandbox"),
            RequiredIsolation::None => (!has_container && !has_sandbox, "a sandbox or container"),
        };
        if !is_met {
            let why = format!(
                "it has `requires_sandbox: {}`, and the agent `{name}` has {place}",
                required.value
            );
            return Some((required.at, why));
        }
    }
    let image = keys.sandbox_image.as_ref().filter(|image| image.value == PhaseImage::Qa)?;
    let has_own_container = keys.agent.is_some() && agent.container().is_some();
    let why = "it has `sandbox_image: qa`, and no `agent` of its own that runs in a container";
    (!has_own_container).then(|| (image.at, why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_lowers_permissions_and_adds_none() {
        let permission = |name: &str, level| GithubPermission { name: name.to_owned(), level };
        let (read, write) = (GithubPermissionLevel::Read, GithubPermissionLevel::Write);
        let all = [
            permission("contents", write),
            permission("issues", write),
            permission("checks", read),
        ];
        let levels = |profile: GitAccessProfile| {
            let limited = profile.limit(&all);
            assert_eq!(limited.len(), all.len());
            limited.into_iter().map(|it| it.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(GitAccessProfile::Read), [read, read, read]);
        assert_eq!(levels(GitAccessProfile::IssuesWrite), [read, write, read]);
        assert_eq!(levels(GitAccessProfile::ReviewWrite), [read, write, read]);
        assert_eq!(levels(GitAccessProfile::RepoWrite), [write, write, read]);
    }
}
