//! Active workflow runs, and the operations on workflows.
//!
//! A simulated run (dry run or replay) calls no agent and executes no command: outputs come from an
//! earlier run or are generated. Start at [`WorkflowOperation`] and [`ActiveWorkflowRun`].

use std::collections::HashMap;
use std::sync::Arc;

use heeler_config::workflow::{PhaseRepeat, ScriptLanguage, Workflow};
use heeler_config::{AgentConfig, RuntimeConfig};
use heeler_model::workflow::{
    GateAnswer, JournalEntry, PartDecision, PartJobSpec, PartJobWork, PartOutcome, PhasePart,
    WorkflowRun, WorkflowRunStatus, WorkflowStepEvent,
};
use heeler_model::{JobId, JobRequest, PhaseJobKind, PhaseJobRequest, TriggerType, WorkflowRunId};
use heeler_store::{DatabaseError, StateDatabase, WorkflowRunRow};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::setup::DaemonSetup;

/// Operation on workflows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowOperation {
    /// Start a run.
    Run(WorkflowRunRequest),
    /// Cancel a run.
    Cancel {
        run: WorkflowRunId,
        /// Cancel immediately instead of gracefully.
        now: bool,
    },
    /// Continue a run that has ended. Failed parts are executed again.
    Retry {
        run: WorkflowRunId,
        /// Execute this phase again too, with every phase that depends on it.
        from: Option<String>,
    },
    /// Allow runs of a workflow to start.
    Enable { workflow: String },
    /// Keep runs of a workflow from starting.
    Disable { workflow: String },
}

/// Request for a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRunRequest {
    pub workflow: String,
    /// Inputs; text is converted to the type of the input.
    #[serde(default)]
    pub inputs: Map<String, Json>,
    /// Identifies the subject of the run. If a run with the same ID is active, the request returns
    /// that run.
    #[serde(default)]
    pub trigger_id: Option<String>,
    #[serde(default = "manual")]
    pub trigger: TriggerType,
    /// Real, or simulated.
    #[serde(default)]
    pub mode: WorkflowMode,
}

impl WorkflowRunRequest {
    /// Returns the request of a person who specifies only the workflow.
    pub fn manual_run(workflow: &str) -> WorkflowRunRequest {
        WorkflowRunRequest {
            workflow: workflow.to_owned(),
            inputs: Map::new(),
            trigger_id: None,
            trigger: TriggerType::Manual,
            mode: WorkflowMode::Real,
        }
    }
}

/// A run that was started, or was already active.
pub(crate) struct StartedWorkflowRun {
    pub(crate) run: WorkflowRunId,
    pub(crate) status: WorkflowRunStatus,
    pub(crate) is_new: bool,
}

fn manual() -> TriggerType {
    TriggerType::Manual
}

/// Mode of a workflow run: real or simulated.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowMode {
    /// Agents and commands are executed.
    #[default]
    Real,
    /// Outputs are generated, except those of scripted agents.
    Dry,
    /// Outputs of an earlier run are repeated.
    Replay {
        /// The earlier run.
        run: WorkflowRunId,
    },
}

impl WorkflowMode {
    /// Returns the stored form.
    pub(crate) fn as_text(&self) -> Option<String> {
        match self {
            WorkflowMode::Real => None,
            WorkflowMode::Dry => Some("dry".to_owned()),
            WorkflowMode::Replay { run } => Some(format!("replay:{run}")),
        }
    }

    fn from_text(text: Option<&str>) -> WorkflowMode {
        match text {
            None => WorkflowMode::Real,
            Some(text) => match text.strip_prefix("replay:").and_then(|run| run.parse().ok()) {
                Some(run) => WorkflowMode::Replay { run },
                None => WorkflowMode::Dry,
            },
        }
    }
}

/// A workflow run that has not ended.
#[derive(Debug)]
pub(crate) struct ActiveWorkflowRun {
    pub(crate) row: WorkflowRunRow,
    pub(crate) state: WorkflowRun,
    /// True if more parts can start immediately.
    pub(crate) has_ready_parts: bool,
    /// Internal events to apply after the current one.
    pub(crate) pending_events: Vec<WorkflowStepEvent>,
    mode: WorkflowMode,
    /// Outputs of the run that is replayed.
    recorded: HashMap<(String, PhasePart), RecordedPartOutput>,
}

/// Result of a simulated part.
#[derive(Debug)]
pub(crate) struct SimulatedPart {
    text: String,
    fails: bool,
}

/// Placeholders that the scripted agent replaces. A recorded text that contains one must be output
/// unchanged in another way.
const SCRIPT_WORDS: [&str; 8] =
    ["{prompt}", "{turn}", "{remembered}", "{session}", "{cwd}", "{answer}", "{output}", "{n}"];

impl SimulatedPart {
    /// Returns the prompt and kind of a job that produces the simulated result.
    pub(crate) fn into_job(self, prompt: String) -> (String, PhaseJobKind) {
        let SimulatedPart { text, fails } = self;
        match fails || SCRIPT_WORDS.iter().any(|word| text.contains(word)) {
            true => {
                let command = format!("cat; exit {}", u8::from(fails));
                (text, PhaseJobKind::Command { command, env: Vec::new() })
            }
            false => (prompt, PhaseJobKind::Play { text }),
        }
    }
}

/// Output of a part in an earlier run.
#[derive(Debug, Clone)]
struct RecordedPartOutput {
    text: String,
    consents: bool,
}

impl ActiveWorkflowRun {
    /// Creates the state of a new run.
    pub(crate) fn start_new(
        db: &StateDatabase,
        row: WorkflowRunRow,
        workflow: Arc<Workflow>,
    ) -> Result<ActiveWorkflowRun, DatabaseError> {
        let mut course = WorkflowRun::new(workflow, row.context.clone());
        course.status = row.head.status;
        course.scratch = row.scratch.clone();
        course.current_phase = row.head.current_phase.clone();
        course.error = row.head.error.clone();
        course.restarts = u32::try_from(row.head.restart_count).unwrap_or(u32::MAX);
        let mode = WorkflowMode::from_text(row.head.mode.as_deref());
        let said = match &mode {
            WorkflowMode::Replay { run } => load_recorded_outputs(db, run)?,
            WorkflowMode::Real | WorkflowMode::Dry => HashMap::new(),
        };
        Ok(ActiveWorkflowRun {
            row,
            state: course,
            has_ready_parts: false,
            pending_events: Vec::new(),
            mode,
            recorded: said,
        })
    }

    /// Loads a run from its journal.
    pub(crate) fn load(
        db: &StateDatabase,
        row: WorkflowRunRow,
        workflow: Arc<Workflow>,
    ) -> Result<ActiveWorkflowRun, DatabaseError> {
        let places = workflow.phases.iter().enumerate();
        let places: HashMap<&str, usize> = places.map(|(at, it)| (it.name.as_str(), at)).collect();
        let journal = db.journal(&row.head.id)?;
        let granted = match workflow.budget {
            Some(_) => granted_budgets(db, &row.head.id)?,
            None => HashMap::new(),
        };
        let entries: Vec<JournalEntry> = journal
            .into_iter()
            .filter_map(|row| {
                Some(JournalEntry {
                    phase: *places.get(row.phase.as_str())?,
                    part: row.part,
                    seq: row.seq,
                    job: row.job.clone(),
                    outcome: row.outcome,
                    decision: row.decision,
                    output: row.output.map(Into::into),
                    error: row.error,
                    micros: match (&row.job, row.outcome) {
                        (Some(job), None) => granted.get(job).copied().unwrap_or(0),
                        _ => row.micros,
                    },
                })
            })
            .collect();
        let mut running = ActiveWorkflowRun::start_new(db, row, Arc::clone(&workflow))?;
        entries.iter().for_each(|entry| running.state.apply_entry(entry));
        running.state.seq = running.state.seq.max(running.row.seq);
        // The last step may have left parts to start.
        running.has_ready_parts = running.row.head.status != WorkflowRunStatus::Queued;
        Ok(running)
    }

    /// Returns the simulated result of a part; `None` in a real run.
    pub(crate) fn simulate_part(
        &self,
        setup: &DaemonSetup,
        agent: &str,
        entry: &JournalEntry,
        piece: &PartJobSpec,
    ) -> Option<SimulatedPart> {
        let phase = &self.state.workflow.phases[entry.phase];
        match &self.mode {
            WorkflowMode::Real => return None,
            WorkflowMode::Replay { .. } => {
                let key = (phase.name.to_string(), entry.part);
                if let Some(said) = self.recorded.get(&key) {
                    return Some(SimulatedPart { text: said.text.clone(), fails: !said.consents });
                }
            }
            WorkflowMode::Dry => {
                let is_scripted =
                    |it: &AgentConfig| matches!(it.runtime, RuntimeConfig::Scripted(_));
                let asks = matches!(piece.work, PartJobWork::Ask { .. });
                if asks && setup.agent(agent).is_some_and(is_scripted) {
                    return None;
                }
            }
        }
        let label = entry.part.label(&phase.name);
        let mut text = match &piece.work {
            PartJobWork::Ask { .. } => format!("[dry run] {label}: {agent} would be asked."),
            PartJobWork::Bash { command, .. } => format!("[dry run] {label}: $ {command}"),
            PartJobWork::Script { .. } => format!("[dry run] {label}: a script would run."),
        };
        // Add the markers that end loops and satisfy conditions, so that a dry run reaches every
        // phase.
        match (&phase.repeat, &phase.on_output.requires_marker) {
            (PhaseRepeat::Review(_), _) => text.push_str("\nVERDICT: APPROVED"),
            (PhaseRepeat::Until(_), _) => text.push_str("\nREADY"),
            _ => {}
        }
        if let Some(marker) = &phase.on_output.requires_marker {
            text.push('\n');
            text.push_str(marker);
        }
        Some(SimulatedPart { text, fails: false })
    }

    /// Returns the simulated answer to a gate; `None` in a real run.
    pub(crate) fn simulate_answer(
        &self,
        entry: &JournalEntry,
        now: Timestamp,
    ) -> Option<GateAnswer> {
        let phase = &self.state.workflow.phases[entry.phase];
        let (said, by) = match &self.mode {
            WorkflowMode::Real => return None,
            WorkflowMode::Dry => (None, "the dry run".to_owned()),
            WorkflowMode::Replay { run } => {
                let key = (phase.name.to_string(), entry.part);
                (self.recorded.get(&key), format!("the replay of {run}"))
            }
        };
        Some(GateAnswer {
            is_approved: said.is_none_or(|said| said.consents),
            text: said.map(|said| said.text.clone()).filter(|text| !text.is_empty()),
            by,
            at: now,
            seq: entry.seq,
        })
    }
}

/// Returns the budgets of a run's queued and running jobs, in millionths of a dollar.
fn granted_budgets(
    db: &StateDatabase,
    run: &WorkflowRunId,
) -> Result<HashMap<JobId, i64>, DatabaseError> {
    let mut granted = HashMap::new();
    for row in db.queue()? {
        let wanted: Option<JobRequest> = serde_json::from_str(&row.request_json).ok();
        let phase: Option<Box<PhaseJobRequest>> = wanted.and_then(|wanted| wanted.phase);
        let phase = phase.filter(|phase| phase.run == *run);
        granted.extend(phase.and_then(|phase| Some((row.job, phase.micros_left?))));
    }
    Ok(granted)
}

/// Returns the output of each part of a run, at its last execution.
fn load_recorded_outputs(
    db: &StateDatabase,
    run: &WorkflowRunId,
) -> Result<HashMap<(String, PhasePart), RecordedPartOutput>, DatabaseError> {
    let journal = db.journal(run)?.into_iter().filter(|row| row.outcome.is_some());
    let said = journal.map(|row| {
        // The result of a check is its decision, not its exit status.
        let consents = match row.decision {
            Some(PartDecision::ConditionNotMet) => !matches!(row.part, PhasePart::Check(_)),
            _ => row.outcome == Some(PartOutcome::Succeeded),
        };
        (
            (row.phase, row.part),
            RecordedPartOutput { text: row.output.unwrap_or_default(), consents },
        )
    });
    Ok(said.collect())
}

/// Returns a shell command that executes the program on its standard input.
pub(crate) fn script_command(language: ScriptLanguage) -> String {
    let (extension, run) = match language {
        ScriptLanguage::Js => ("mjs", "node \"$file\""),
        ScriptLanguage::Ts => ("mts", "node --experimental-strip-types --no-warnings \"$file\""),
        ScriptLanguage::Python => (
            "py",
            "if command -v uv >/dev/null 2>&1; then uv run --quiet \"$file\"; \
             else python3 \"$file\"; fi",
        ),
    };
    format!(
        "dir=$(mktemp -d) || exit 1\ntrap 'rm -rf \"$dir\"' EXIT\nfile=\"$dir/script.{extension}\"\n\
         cat > \"$file\" || exit 1\n{run}\n"
    )
}
