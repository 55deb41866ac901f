//! Conversion of phases from their written form to definitions.
//!
//! Start at [`WorkflowLoader::phases`].

use std::collections::HashMap;

use super::definition::{
    ContextNumber, ForeachLoop, Gate, GateDefault, GateKind, MarkerRule, OutputRules, Phase,
    PhaseMessages, PhaseRepeat, PhaseSkills, PhaseWork, ReviewLoop, SkillFile, SoftFailurePolicy,
    UntilLoop,
};
use super::keys::{
    ContextNumberKeys, ForeachKeys, GateKeys, GateMapKeys, GenericLoopKeys, LoopMessagesKeys,
    MarkerAction, MessagesKeys, OutputKeys, PhaseKeys, PhaseRetryKeys, PhaseType, ReviewLoopKeys,
    SoftFailureOutcome,
};
use super::parse::WorkflowLoader;
use super::pattern::WorkflowPattern;
use super::references::TemplateReferences;
use super::template::{WorkflowExpression, WorkflowTemplate};
use crate::policy::{RetryKeys, RetryPolicy};
use crate::reader::SourceSpan;
use crate::value::{NonBlankText, SpannedValue};
use crate::{AgentName, ConfigDuration, LocalName};

/// Phase that is being loaded.
struct PhaseLoadContext<'p> {
    number: usize,
    keys: &'p PhaseKeys,
    /// Texts of its skills.
    skills: String,
    skill_files: Vec<SkillFile>,
    /// Name of the item in a `foreach`.
    item: Option<String>,
    /// Agent of phases that name none.
    workflow_agent: Option<&'p AgentName>,
}

impl WorkflowLoader<'_> {
    /// Builds the phases of a workflow.
    pub(super) fn phases(
        &mut self,
        written: &[PhaseKeys],
        (has_agent, workflow_agent): (bool, Option<&AgentName>),
        waits: &[Vec<usize>],
    ) -> Option<Vec<Phase>> {
        self.reject_duplicates(written);
        let mut phases = Vec::new();
        for (number, keys) in written.iter().enumerate() {
            let (skills, skill_files) = self.skills(keys);
            let item = keys.foreach.as_ref().map(|it| it.value.0.name.value.to_string());
            let place =
                PhaseLoadContext { number, keys, skills, skill_files, item, workflow_agent };
            phases.extend(self.phase(&place, has_agent));
        }
        // Zipped by position, which is right only if no phase was lost; the next line checks that.
        for (phase, waits) in phases.iter_mut().zip(waits) {
            phase.depends_on.clone_from(waits);
        }
        (phases.len() == written.len()).then_some(phases)
    }

    fn reject_duplicates(&mut self, written: &[PhaseKeys]) {
        let mut known: HashMap<&str, SourceSpan> = HashMap::new();
        for keys in written {
            let SpannedValue { value: name, at, .. } = &keys.name;
            if known.insert(name.as_str(), *at).is_some() {
                let message = format!("there are two phases `{name}`");
                self.reader.error(*at, message).expected("expected another name");
            }
        }
        for var in written.iter().filter_map(|keys| keys.output_var.as_ref()) {
            // Equality includes the position, so this finds the phase that contains the name.
            let owner = written.iter().find(|keys| keys.output_var.as_ref() == Some(var));
            let is_own = owner.is_some_and(|keys| keys.name.value == var.value);
            if known.contains_key(var.value.as_str()) && !is_own {
                let message = format!("`{}` is the name of another phase", var.value);
                self.reader.error(var.at, message).expected("expected another name");
            }
        }
    }

    /// Returns the texts of a phase's skills, and their other files.
    fn skills(&mut self, keys: &PhaseKeys) -> (String, Vec<SkillFile>) {
        // The texts would be joined in an order that nobody wrote.
        if let (Some(skill), Some(_)) = (&keys.skill, &keys.skills) {
            let message = "`skill` and `skills` are the same key".to_owned();
            self.reader.error(skill.at, message).expected("keep one of them");
        }
        let one = keys.skill.iter().map(|skill| (&skill.value, skill.at));
        let more =
            keys.skills.iter().flat_map(|list| list.value.iter().map(|name| (name, list.at)));
        let names: Vec<(&LocalName, SourceSpan)> = one.chain(more).collect();
        let (texts, files): (Vec<String>, Vec<Vec<SkillFile>>) =
            names.into_iter().filter_map(|(name, at)| self.load_skill(name.as_str(), at)).unzip();
        (texts.join("\n\n"), files.into_iter().flatten().collect())
    }

    fn phase(&mut self, place: &PhaseLoadContext<'_>, has_agent: bool) -> Option<Phase> {
        let keys = place.keys;
        self.reject_misplaced_keys(keys);
        let own_agent = keys.agent.as_ref().map(|agent| self.resolve_agent(agent));
        let kind = keys.kind.value;
        // A context phase has no work, so nobody needs to do it.
        if kind != PhaseType::Context && !has_agent && keys.agent.is_none() {
            let message = format!("no agent is set for the phase `{}`", keys.name.value);
            let help =
                "set `agent:` in the phase, in the workflow, or in `workflows:` of the fleet file";
            self.reader.error(keys.name.at, message).expected("an agent is required").help(help);
        }
        let work = self.work(place);
        // Read before the first `?`, so that all faults of the phase are reported.
        let skip_if = keys.skip_if.iter().flat_map(|list| &list.0);
        let mut skip_if: Vec<WorkflowExpression> =
            skip_if.map(|it| self.expression(it, place)).collect();
        let agent = own_agent.as_ref().map_or(place.workflow_agent, Option::as_ref);
        skip_if.extend(self.check_phase_needs(keys, agent));
        let repeat = self.repeat(place);
        let gate = keys.approval_gate.as_ref().and_then(|gate| {
            let message = keys.approval_gate_message.as_ref();
            self.gate(place, &gate.value, message, keys.approval_artifact.as_ref())
        });
        let mut messages = self.messages(place, &keys.messages);
        if let Some(review) = &keys.review {
            self.loop_messages(place, &review.value.messages, &mut messages);
        }
        Some(Phase {
            name: keys.name.value.clone(),
            label: keys.label.clone(),
            // A missing agent is allowed here, an unknown one is not.
            agent: match own_agent {
                Some(found) => Some(found?),
                None => None,
            },
            on_output: self.output_rules(place, &keys.on_output),
            timeout_seconds: keys.timeout_seconds.as_ref().map(context_number),
            retry: self.retry(keys.retry.as_ref()),
            working_directory: self.template(keys.working_directory.as_ref(), place),
            work: work?,
            // Filled in when all phases are known.
            depends_on: Vec::new(),
            trigger_rule: keys.trigger_rule,
            skip_if,
            repeat: repeat?,
            gate,
            output_var: keys.output_var.as_ref().map(|name| name.value.to_string()),
            messages,
            set_phase: keys.on_success.as_ref().and_then(|it| it.set_phase.clone()),
            skills: PhaseSkills {
                files: place.skill_files.clone(),
                are_prompt: keys.kind.value == PhaseType::Agent && keys.prompt.is_none(),
            },
        })
    }

    /// Reports keys that do not apply to the phase's type.
    fn reject_misplaced_keys(&mut self, keys: &PhaseKeys) {
        use PhaseType::{Agent, Bash, Script};
        let at = |value: &Option<SpannedValue<NonBlankText>>| value.as_ref().map(|it| it.at);
        let all: [(&str, Option<SourceSpan>, &[PhaseType]); 10] = [
            ("prompt", at(&keys.prompt), &[Agent]),
            ("skill", keys.skill.as_ref().map(|it| it.at), &[Agent]),
            ("skills", keys.skills.as_ref().map(|it| it.at), &[Agent]),
            ("model", keys.model.as_ref().map(|it| it.at), &[Agent]),
            ("command", keys.command.as_ref().map(|it| it.at), &[Bash]),
            ("script", at(&keys.script), &[Script]),
            ("runtime", keys.runtime.as_ref().map(|it| it.at), &[Script]),
            ("loop", keys.review.as_ref().map(|it| it.at), &[Agent]),
            ("generic_loop", keys.generic_loop.as_ref().map(|it| it.at), &[Agent, Bash, Script]),
            ("foreach", keys.foreach.as_ref().map(|it| it.at), &[Agent, Bash, Script]),
        ];
        let kind = keys.kind.value;
        let context = &self.context;
        let can_post = context.settings.can_use_github || context.is_frozen;
        if kind == PhaseType::PostReview && !can_post {
            // Accepting it would drop the review silently.
            let message = "`post-review` needs access to GitHub".to_owned();
            let help = "set `github` in the fleet file, with `token_env` or `app`, and `repos`";
            let fault = self.reader.error(keys.kind.at, message);
            fault.expected("it cannot be posted").help(help);
            return;
        }
        for (key, at, types) in all {
            if let Some(at) = at.filter(|_| !types.contains(&kind)) {
                let names: Vec<String> = types.iter().map(|it| format!("`type: {it}`")).collect();
                let message = format!("`{key}` belongs to a phase with {}", names.join(" or "));
                self.reader.error(at, message).expected(format!("this one has `type: {kind}`"));
            }
        }
        // The last three entries are the kinds of repetition.
        let repeats = all[7..].iter().filter_map(|(key, at, _)| Some((*key, (*at)?)));
        let repeats: Vec<(&str, SourceSpan)> = repeats.collect();
        if let [(first, _), (second, at), ..] = repeats[..] {
            let message = format!("`{first}` and `{second}` cannot be in one phase");
            self.reader.error(at, message).expected("split it into two phases");
        }
    }

    fn work(&mut self, place: &PhaseLoadContext<'_>) -> Option<PhaseWork> {
        let keys = place.keys;
        let mut missing = |key: &str| {
            let message = format!("the phase `{}` has no `{key}`", keys.name.value);
            let expected = format!("`type: {}` needs one", keys.kind.value);
            self.reader.error(keys.name.at, message).expected(expected);
        };
        match keys.kind.value {
            PhaseType::Context => Some(PhaseWork::Context),
            PhaseType::PostReview => Some(PhaseWork::PostReview),
            PhaseType::Agent
                if keys.prompt.is_none() && keys.skill.is_none() && keys.skills.is_none() =>
            {
                missing("prompt");
                None
            }
            PhaseType::Agent => {
                let prompt = match &keys.prompt {
                    Some(prompt) => self.load_phase_prompt(place, prompt)?,
                    None => {
                        // The skills alone are the prompt.
                        let nothing = WorkflowTemplate::parse("").expect("no text is a template");
                        nothing.with_prefix(place.skills.clone())
                    }
                };
                let model = self.template(keys.model.as_ref(), place);
                let effort = self.template(keys.variant.as_ref(), place);
                Some(PhaseWork::Agent { prompt, model, effort })
            }
            PhaseType::Bash => {
                let Some(command) = &keys.command else {
                    missing("command");
                    return None;
                };
                // Checked later, when all phases and inputs are known.
                self.add_references(command.at, command.value.0.references(), place);
                Some(PhaseWork::Bash { command: command.value.0.clone() })
            }
            PhaseType::Script => {
                let Some(script) = &keys.script else {
                    missing("script");
                    return None;
                };
                let Some(language) = &keys.runtime else {
                    missing("runtime");
                    return None;
                };
                let source = script.value.0.clone();
                Some(PhaseWork::Script { source, language: language.value })
            }
        }
    }

    fn load_phase_prompt(
        &mut self,
        place: &PhaseLoadContext<'_>,
        written: &SpannedValue<NonBlankText>,
    ) -> Option<WorkflowTemplate> {
        // A blank line keeps the skill's text apart from the prompt.
        let before = match place.skills.as_str() {
            "" => String::new(),
            skills => format!("{skills}\n\n"),
        };
        let (template, at) = self.load_prompt(written, &before)?;
        self.add_references(at, template.references(), place);
        Some(template)
    }

    fn add_references(
        &mut self,
        at: SourceSpan,
        paths: Vec<super::template_scope::ValuePath>,
        place: &PhaseLoadContext<'_>,
    ) {
        self.references.push(
            TemplateReferences::new(at, paths, Some(place.number))
                .with_local_name(place.item.clone()),
        );
    }

    fn template(
        &mut self,
        written: Option<&SpannedValue<WorkflowTemplate>>,
        place: &PhaseLoadContext<'_>,
    ) -> Option<WorkflowTemplate> {
        let written = written?;
        self.add_references(written.at, written.value.references(), place);
        Some(written.value.clone())
    }

    fn expression(
        &mut self,
        written: &SpannedValue<WorkflowExpression>,
        place: &PhaseLoadContext<'_>,
    ) -> WorkflowExpression {
        self.add_references(written.at, written.value.references(), place);
        written.value.clone()
    }

    fn repeat(&mut self, place: &PhaseLoadContext<'_>) -> Option<PhaseRepeat> {
        let keys = place.keys;
        if let Some(review) = &keys.review {
            return self
                .review_loop(place, &review.value)
                .map(|it| PhaseRepeat::Review(Box::new(it)));
        }
        if let Some(until) = &keys.generic_loop {
            return self.until_loop(place, until).map(|it| PhaseRepeat::Until(Box::new(it)));
        }
        let Some(SpannedValue { value: ForeachKeys(foreach), .. }) = &keys.foreach else {
            return Some(PhaseRepeat::Once);
        };
        let items = self.expression(&foreach.items.0, place);
        let name = foreach.name.value.to_string();
        Some(PhaseRepeat::Foreach(Box::new(ForeachLoop {
            items,
            name,
            max_parallel: foreach.max_parallel,
        })))
    }

    fn review_loop(
        &mut self,
        place: &PhaseLoadContext<'_>,
        keys: &ReviewLoopKeys,
    ) -> Option<ReviewLoop> {
        let fix = &keys.on_request_changes;
        let fix_prompt = self.load_phase_prompt(place, &fix.fix_prompt);
        let re_review_prompt = self.load_phase_prompt(place, &fix.re_review_prompt);
        // A fix is the same kind of work, so it uses the phase's model unless it has its own.
        let fix_model = fix.fix_model.as_ref().or(place.keys.model.as_ref());
        let fix_model = self.template(fix_model, place);
        let fix_effort = fix.fix_variant.as_ref().or(place.keys.variant.as_ref());
        let fix_effort = self.template(fix_effort, place);
        let gate = keys.approval_gate.as_ref().and_then(|gate| {
            let message = keys.messages.on_pause_for_approval.as_ref();
            self.gate(place, &gate.value, message, keys.approval_artifact.as_ref())
        });
        Some(ReviewLoop {
            max_cycles: keys.max_cycles.get().unsigned_abs(),
            fix_prompt: fix_prompt?,
            fix_model,
            fix_effort,
            re_review_prompt: re_review_prompt?,
            gate,
        })
    }

    fn until_loop(
        &mut self,
        place: &PhaseLoadContext<'_>,
        written: &SpannedValue<GenericLoopKeys>,
    ) -> Option<UntilLoop> {
        let keys = &written.value;
        // Such a loop could only end by its limit.
        if keys.until.is_none() && keys.until_bash.is_none() {
            let message = "the loop has neither `until` nor `until_bash`".to_owned();
            self.reader.error(written.at, message).expected("set one of them");
        }
        let until = keys.until.as_ref().map(|it| self.expression(it, place));
        let until_bash = keys.until_bash.as_ref().map(|it| {
            self.add_references(it.at, it.value.0.references(), place);
            it.value.0.clone()
        });
        Some(UntilLoop {
            max_iterations: context_number(&keys.max_iterations),
            until,
            until_bash,
            gate: self.loop_gate(place, keys),
            scratch_key: keys.scratch_key.as_ref().map(|key| key.value.to_string()),
            fresh_context: keys.fresh_context,
            on_soft_failure: SoftFailurePolicy {
                retries: keys.on_soft_failure.retries.as_u32(),
                completes: keys.on_soft_failure.then == SoftFailureOutcome::Complete,
            },
        })
    }

    /// Builds the gate before each further iteration. It has the name of the phase.
    fn loop_gate(&mut self, place: &PhaseLoadContext<'_>, keys: &GenericLoopKeys) -> Option<Gate> {
        let name = place.keys.name.value.to_string();
        let message = self.template(keys.gate_message.as_ref(), place);
        // Read even if the loop asks nobody, so that a wrong default is reported.
        let timeout = self.timeout(keys.gate_timeout, keys.gate_default.as_ref(), keys.gate_kind);
        let gate = Gate { name, kind: keys.gate_kind, message, artifact: None, timeout };
        keys.interactive.then_some(gate)
    }

    fn gate(
        &mut self,
        place: &PhaseLoadContext<'_>,
        GateKeys(keys): &GateKeys,
        message: Option<&SpannedValue<WorkflowTemplate>>,
        artifact: Option<&String>,
    ) -> Option<Gate> {
        let GateMapKeys { name, message: own, timeout, default } = keys;
        // Both texts would be shown in the same place.
        if let (Some(own), Some(_)) = (own, message) {
            let said = "the question is set twice".to_owned();
            self.reader.error(own.at, said).expected("keep one of them");
        }
        let message = self.template(own.as_ref().or(message), place);
        let timeout = self.timeout(*timeout, default.as_ref(), GateKind::Approve);
        let (name, artifact) = (name.to_string(), artifact.cloned());
        Some(Gate { name, kind: GateKind::Approve, message, artifact, timeout })
    }

    /// Reads the time limit of a gate and the answer after it. The default answer is a rejection.
    fn timeout(
        &mut self,
        timeout: Option<ConfigDuration>,
        default: Option<&SpannedValue<String>>,
        kind: GateKind,
    ) -> Option<(ConfigDuration, GateDefault)> {
        let answer = match (default, kind) {
            // Silence is not consent.
            (None, _) => GateDefault::Reject,
            (Some(words), GateKind::Reply) => GateDefault::Reply(words.value.clone()),
            (Some(word), GateKind::Approve) => match word.value.as_str() {
                "approve" => GateDefault::Approve,
                "reject" => GateDefault::Reject,
                other => {
                    let message = format!("`{other}` is not an answer to this gate");
                    self.reader.error(word.at, message).expected("expected `approve` or `reject`");
                    return None;
                }
            },
        };
        // Without a timeout the default could never apply, and the run would wait forever.
        if let (None, Some(default)) = (timeout, default) {
            let message = "a default answer needs a timeout".to_owned();
            self.reader.error(default.at, message).expected("set the timeout");
        }
        timeout.map(|timeout| (timeout, answer))
    }

    fn output_rules(&mut self, place: &PhaseLoadContext<'_>, keys: &OutputKeys) -> OutputRules {
        let requires_marker = keys.requires_marker.as_ref().map(|marker| marker.0.clone());
        let Some(rule) = &keys.blocked else {
            return OutputRules { blocked: None, requires_marker };
        };
        if rule.action.value != MarkerAction::Fail {
            let message = format!("`action: {}` has no effect", rule.action.value);
            self.reader.warn(rule.action.at, message).expected("only `fail` has an effect");
            return OutputRules { blocked: None, requires_marker };
        }
        let blocked = MarkerRule {
            message: self.template(rule.message.as_ref(), place),
            unless_label: rule.unless_label.clone(),
            unless_title_matches: rule
                .unless_title_matches
                .as_ref()
                .and_then(|it| self.pattern(it)),
            bypass_message: self.template(rule.bypass_message.as_ref(), place),
        };
        OutputRules { blocked: Some(blocked), requires_marker }
    }

    fn pattern(&mut self, written: &SpannedValue<String>) -> Option<WorkflowPattern> {
        let refused = match WorkflowPattern::parse(&written.value) {
            Ok(pattern) => return Some(pattern),
            Err(why) => why,
        };
        // Earlier releases took this value as plain text.
        if self.context.is_frozen {
            return WorkflowPattern::literal(&written.value);
        }
        let message = format!("`{}` is not a regular expression: {refused}", written.value);
        let fault = self.reader.error(written.at, message);
        fault.expected("expected one such as `scaffold|bootstrap`");
        fault.help("to match a special character literally, put a backslash before it: `\\(`");
        None
    }

    fn messages(&mut self, place: &PhaseLoadContext<'_>, keys: &MessagesKeys) -> PhaseMessages {
        PhaseMessages {
            on_start: self.template(keys.on_start.as_ref(), place),
            on_success: self.template(keys.on_success.as_ref(), place),
            on_failure: self.template(keys.on_failure.as_ref(), place),
            on_skipped_done: self.template(keys.on_skipped_done.as_ref(), place),
            on_blocked: self.template(keys.on_blocked.as_ref(), place),
            on_blocked_bypassed: self.template(keys.on_blocked_bypassed.as_ref(), place),
            ..PhaseMessages::default()
        }
    }

    fn loop_messages(
        &mut self,
        place: &PhaseLoadContext<'_>,
        keys: &LoopMessagesKeys,
        all: &mut PhaseMessages,
    ) {
        all.on_cycle_start = self.template(keys.on_cycle_start.as_ref(), place);
        all.on_approved = self.template(keys.on_approved.as_ref(), place);
        all.on_request_changes = self.template(keys.on_request_changes.as_ref(), place);
        all.on_max_cycles = self.template(keys.on_max_cycles.as_ref(), place);
        all.on_fix_start = self.template(keys.on_fix_start.as_ref(), place);
        all.on_fix_failed = self.template(keys.on_fix_failed.as_ref(), place);
        all.on_pause_for_approval = self.template(keys.on_pause_for_approval.as_ref(), place);
    }

    fn retry(&mut self, keys: Option<&PhaseRetryKeys>) -> RetryPolicy {
        let keys = match keys {
            Some(PhaseRetryKeys { max, backoff, max_backoff }) => {
                RetryKeys { max: *max, backoff: *backoff, max_backoff: max_backoff.clone() }
            }
            None => {
                // The same as in the declaration of the keys, which does not apply to a missing
                // section.
                let backoff = "30s".parse().expect("30 seconds are a period");
                RetryKeys { max: crate::value::BoundedInt::zero(), backoff, max_backoff: None }
            }
        };
        RetryPolicy::check(&keys, &mut self.reader)
    }
}

fn context_number<const MAX: i32>(keys: &ContextNumberKeys<MAX>) -> ContextNumber {
    match keys {
        ContextNumberKeys::Fixed(number) => ContextNumber::Fixed(*number),
        ContextNumberKeys::From(keys) => ContextNumber::Context {
            path: keys.from.0.trim().to_owned(),
            default: keys.default.get(),
        },
    }
}
