//! Jobs of a workflow run, with all templates rendered.
//!
//! Start at [`WorkflowRun::part_job`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use heeler_config::ReasoningEffort;
use heeler_config::workflow::{
    PhaseRepeat, PhaseWork, ScriptLanguage, TemplateRenderError, TemplateScope, WorkflowExpression,
    WorkflowTemplate,
};
use serde_json::{Value as Json, json};

use super::journal::PhasePart;
use super::review_findings::read_findings_command;
use super::workflow_run::{PhaseState, WorkflowRun};
use super::workflow_step::WorkflowStepContext;
use crate::AgentName;

/// Most outputs of earlier phases in a command's environment or a skill's context, nearest first.
const EARLIER_OUTPUTS_MAX: usize = 32;

/// Largest total of outputs in the context of a skill, in bytes.
const CONTEXT_BYTES_MAX: usize = 128 << 10;

/// Longest such output in bytes. The system limit is 128 KiB including the name.
const VARIABLE_BYTES_MAX: usize = 120 << 10;

/// Largest total of such outputs in bytes. A process has room for little more.
const ENVIRONMENT_BYTES_MAX: usize = 512 << 10;

/// Job of a workflow run.
#[derive(Debug, Clone, PartialEq)]
pub struct PartJobSpec {
    /// Agent that executes it, or that provides the directory of a command.
    pub agent: Option<AgentName>,
    pub work: PartJobWork,
    pub timeout: Option<Duration>,
    /// Directory to work in, within the agent's working directory.
    pub folder: Option<String>,
    /// True if skills of the phase have files that the agent may read.
    pub has_skill_files: bool,
    /// Share of the run's remaining budget, in millionths of a US dollar.
    pub micros_left: Option<i64>,
}

/// Work of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum PartJobWork {
    /// Prompts an agent.
    Ask {
        prompt: String,
        /// Model to use instead of the agent's own.
        model: Option<String>,
        /// Reasoning effort to use instead of the agent's own.
        effort: Option<ReasoningEffort>,
    },
    /// Runs a shell command.
    Bash {
        command: String,
        /// Additional environment variables.
        env: Vec<(String, String)>,
    },
    /// Runs a program.
    Script {
        source: String,
        language: ScriptLanguage,
        /// Additional environment variables.
        env: Vec<(String, String)>,
    },
}

/// Returns the reasoning effort that a rendered word means.
fn parse_effort(word: Option<String>) -> Result<Option<ReasoningEffort>, String> {
    let Some(word) = word else { return Ok(None) };
    match ReasoningEffort::from_variant(&word) {
        None => Err(format!("unknown reasoning effort `{}`", word.trim())),
        effort => Ok(effort),
    }
}

/// Returns the number of a repetition; 0 for a part that is executed once.
fn repetition(part: PhasePart) -> u32 {
    match part {
        PhasePart::Fix(n)
        | PhasePart::Recheck(n)
        | PhasePart::Iteration(n)
        | PhasePart::Check(n)
        | PhasePart::Item(n) => n,
        _ => 0,
    }
}

impl WorkflowRun {
    /// Builds the job for a part.
    pub(super) fn part_job(
        &self,
        place: usize,
        part: PhasePart,
        around: &WorkflowStepContext<'_>,
    ) -> Result<PartJobSpec, String> {
        let phase = &self.workflow.phases[place];
        let mut names = self.template_names(place, repetition(part), around);
        if let (PhasePart::Item(number), PhaseRepeat::Foreach(each)) = (part, &phase.repeat) {
            names.push((each.name.as_str(), self.item(place, number)));
        }
        let scope = self.template_scope(&names);
        let fill =
            |template: &WorkflowTemplate| template.render(&scope).map_err(|it| it.to_string());
        let maybe = |template: &Option<WorkflowTemplate>| {
            let filled = template.as_ref().map(fill).transpose()?;
            // A template that renders to nothing means that the setting is absent.
            Ok::<_, String>(filled.filter(|text| !text.trim().is_empty()))
        };
        let ask = |prompt: &WorkflowTemplate,
                   model: &Option<WorkflowTemplate>,
                   effort: &Option<WorkflowTemplate>| {
            let (prompt, model, effort) = (fill(prompt)?, maybe(model)?, maybe(effort)?);
            Ok::<_, String>(PartJobWork::Ask { prompt, model, effort: parse_effort(effort)? })
        };
        let env = || self.environment(place, around);
        // Checks and fixes come first: they belong to the loop, not to the phase's own work.
        let work = match (part, &phase.repeat, &phase.work) {
            (PhasePart::Check(_), PhaseRepeat::Until(until), _) => {
                let check = until.until_bash.as_ref().ok_or("it has no `until_bash`")?;
                PartJobWork::Bash { command: fill(check)?, env: env() }
            }
            (PhasePart::Fix(_), PhaseRepeat::Review(review), _) => {
                ask(&review.fix_prompt, &review.fix_model, &review.fix_effort)?
            }
            (
                PhasePart::Recheck(_),
                PhaseRepeat::Review(review),
                PhaseWork::Agent { model, effort, .. },
            ) => ask(&review.re_review_prompt, model, effort)?,
            (_, _, PhaseWork::Agent { prompt, model, effort }) => {
                let mut work = ask(prompt, model, effort)?;
                if let (true, PartJobWork::Ask { prompt, .. }) =
                    (phase.skills.are_prompt, &mut work)
                {
                    prompt.push_str(&self.context_section(place, &names));
                }
                work
            }
            (_, _, PhaseWork::Bash { command }) => {
                PartJobWork::Bash { command: fill(command)?, env: env() }
            }
            (_, _, PhaseWork::Script { source, language }) => {
                // A script is not a template: it reads its inputs from the environment.
                PartJobWork::Script { source: source.clone(), language: *language, env: env() }
            }
            (_, _, PhaseWork::PostReview) => {
                PartJobWork::Bash { command: read_findings_command(around.run), env: Vec::new() }
            }
            (_, _, PhaseWork::Context) => return Err("there is nothing to do".to_owned()),
        };
        let timeout = phase.timeout_seconds.as_ref();
        let micros_left = match &work {
            PartJobWork::Ask { .. } => self.budget_share()?,
            // A command costs nothing, and must run even if the budget is spent.
            PartJobWork::Bash { .. } | PartJobWork::Script { .. } => None,
        };
        Ok(PartJobSpec {
            agent: phase.agent.clone().or_else(|| self.workflow.agent.clone()),
            work,
            timeout: timeout.map(|it| Duration::from_secs(u64::from(it.resolve(&self.context)))),
            folder: maybe(&phase.working_directory)?,
            has_skill_files: !phase.skills.files.is_empty(),
            micros_left,
        })
    }

    /// Returns the budget that is neither spent nor granted to parts in progress.
    pub(super) fn remaining_budget(&self) -> Option<i64> {
        let budget = i64::try_from(self.workflow.budget?.micros()).unwrap_or(i64::MAX);
        // Money that was granted may be spent at any time, so it counts as gone.
        let held: i64 = self.grants.values().sum();
        Some(budget.saturating_sub(self.spent_micros).saturating_sub(held))
    }

    /// Returns the budget of a part: its share of the rest, so that all parts that may run at once
    /// stay within the budget together.
    fn budget_share(&self) -> Result<Option<i64>, String> {
        let Some(left) = self.remaining_budget() else { return Ok(None) };
        let room = self.workflow.max_parallel.get() as usize;
        // The part that begins is not open yet, so at least one place is left for it.
        let room = i64::try_from(room.saturating_sub(self.open_parts).max(1)).unwrap_or(1);
        match left / room {
            share if share > 0 => Ok(Some(share)),
            _ => {
                let budget = self.workflow.budget.map_or(0, |budget| budget.micros());
                Err(format!("the run has spent its budget of {}", crate::format_micros(budget)))
            }
        }
    }

    /// Returns the environment of a command: the outputs of earlier phases.
    fn environment(&self, place: usize, around: &WorkflowStepContext<'_>) -> Vec<(String, String)> {
        let mut env = vec![
            ("HEELER_WORKFLOW".to_owned(), self.workflow.name.to_string()),
            ("HEELER_WORKFLOW_RUN".to_owned(), around.run.to_owned()),
        ];
        // Half, because each output is passed under two names.
        for (name, text) in self.earlier_outputs(place, ENVIRONMENT_BYTES_MAX / 2) {
            // A NUL would end the variable.
            let text = text.replace('\0', "");
            // Names of phases may have hyphens, names of variables may not.
            let name = name.to_ascii_uppercase().replace('-', "_");
            env.push((format!("HEELER_OUT_{name}"), text.clone()));
            env.push((format!("LL_OUT_{name}"), text));
        }
        env
    }

    /// Returns the outputs of the phases that a phase depends on, nearest first, as far as they fit.
    fn earlier_outputs(
        &self,
        place: usize,
        bytes_max: usize,
    ) -> impl Iterator<Item = (&str, &Arc<str>)> {
        let mut room = bytes_max;
        let mut turn: VecDeque<usize> = [place].into();
        let mut seen = vec![place];
        let mut found = Vec::new();
        while let Some(at) = turn.pop_front() {
            for on in &self.workflow.phases[at].depends_on {
                // Breadth first, so the limit drops the outputs that are furthest away.
                if seen.len() > EARLIER_OUTPUTS_MAX || seen.contains(on) {
                    continue;
                }
                seen.push(*on);
                turn.push_back(*on);
                let name = self.workflow.phases[*on].name.as_str();
                let most = VARIABLE_BYTES_MAX.min(room);
                let Some(text) = self.outputs.get(name).filter(|it| it.len() <= most) else {
                    continue;
                };
                room -= text.len();
                found.push((name, text));
            }
        }
        found.into_iter()
    }

    /// Returns the names that templates of a phase see in addition to the run's.
    pub(super) fn template_names(
        &self,
        place: usize,
        number: u32,
        around: &WorkflowStepContext<'_>,
    ) -> Vec<(&str, Json)> {
        let phase = &self.workflow.phases[place];
        let run = json!({ "id": around.run, "workflow": self.workflow.name });
        let mut names = vec![("run", run), ("phase", json!(phase.name))];
        let (said, is_fresh) = match (&self.nodes[place].state, &phase.repeat) {
            (PhaseState::Active(progress), PhaseRepeat::Until(until)) => {
                (progress.loop_output.as_str(), until.fresh_context)
            }
            _ => ("", true),
        };
        match &phase.repeat {
            PhaseRepeat::Until(until) => {
                // With a fresh context the iterations are independent on purpose.
                let said = if is_fresh { "" } else { said };
                names.push(("iteration", json!(number)));
                names.push(("maxIterations", json!(until.max_iterations.resolve(&self.context))));
                names.push(("previousOutput", json!(said)));
            }
            PhaseRepeat::Review(review_loop) => {
                let review = self.outputs.get(phase.name.as_str()).map_or("", |text| &**text);
                names.push(("cycle", json!(number)));
                names.push(("fixCycle", json!(number)));
                names.push(("maxCycles", json!(review_loop.max_cycles)));
                names.push(("review", json!(review)));
            }
            PhaseRepeat::Foreach(_) => names.push(("index", json!(number))),
            PhaseRepeat::Once => {}
        }
        names
    }

    /// Returns the end of a prompt that consists of skills: the inputs of the run, as Last Light
    /// passes them, with the loop's names and the outputs of earlier phases.
    fn context_section(&self, place: usize, names: &[(&str, Json)]) -> String {
        let mut text = "\n\nContext:".to_owned();
        let mut add = |name: &str, value: &Json| {
            let value = match value {
                Json::Null => return,
                Json::String(text) => text.clone(),
                other => other.to_string(),
            };
            text.push_str(&format!("\n{name}: {value}"));
        };
        for (name, value) in self.context.as_object().into_iter().flatten() {
            add(name, value);
        }
        // The run and the phase mean nothing to a skill.
        for (name, value) in names.iter().filter(|(name, _)| !["run", "phase"].contains(name)) {
            add(name, value);
        }
        if !self.scratch.is_empty() {
            add("scratch", &Json::Object(self.scratch.clone()));
        }
        let outputs = self.earlier_outputs(place, CONTEXT_BYTES_MAX);
        let outputs: serde_json::Map<String, Json> =
            outputs.map(|(name, text)| (name.to_owned(), Json::from(&**text))).collect();
        if !outputs.is_empty() {
            add("phaseOutputs", &Json::Object(outputs));
        }
        text
    }

    fn item(&self, place: usize, number: u32) -> Json {
        let PhaseState::Active(progress) = &self.nodes[place].state else { return Json::Null };
        let list = progress.items.as_ref().map(|items| &items.list);
        // Items are numbered from 1.
        let item = list.and_then(|list| list.get(number as usize - 1));
        item.cloned().unwrap_or(Json::Null)
    }

    pub(super) fn template_scope<'s>(&'s self, more: &'s [(&'s str, Json)]) -> TemplateScope<'s> {
        TemplateScope {
            context: &self.context,
            scratch: &self.scratch,
            outputs: &self.outputs,
            loop_results: &self.loop_results,
            extra_names: more,
        }
    }

    pub(super) fn evaluate_condition(
        &self,
        expression: &WorkflowExpression,
        place: usize,
        more: &[(&str, Json)],
        around: &WorkflowStepContext<'_>,
    ) -> Result<bool, TemplateRenderError> {
        let mut names = self.template_names(place, 0, around);
        names.extend(more.iter().cloned());
        expression.is_true(&self.template_scope(&names))
    }
}
