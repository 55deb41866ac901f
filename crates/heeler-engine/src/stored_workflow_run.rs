//! Records of active workflow runs, with the outputs of simulated ones.
//!
//! A simulated run (dry run or replay) calls no agent and executes no command: outputs come from an
//! earlier run or are generated. Start at [`StoredWorkflowRun`].

use std::collections::HashMap;
use std::sync::Arc;

use heeler_config::workflow::{Phase, PhaseRepeat, PhaseWork, ScriptLanguage, Workflow};
use heeler_model::fleet::{ActiveWorkflowRun, OpenPart};
use heeler_model::workflow::{
    GateAnswer, JournalEntry, PartDecision, PartJobSpec, PartJobWork, PartOutcome, PhasePart,
    WorkflowRun,
};
use heeler_model::{JobId, JobRequest, PhaseJobKind, PhaseJobRequest, SkillSource, WorkflowRunId};
use heeler_store::{DatabaseError, JournalRow, StateDatabase, WorkflowRunRow};
use jiff::Timestamp;

use crate::workflows::WorkflowMode;

/// Record of an active workflow run.
#[derive(Debug)]
pub(crate) struct StoredWorkflowRun {
    pub(crate) row: WorkflowRunRow,
    mode: WorkflowMode,
    /// Outputs of the run that is replayed.
    recorded: HashMap<(String, PhasePart), RecordedPartOutput>,
    /// Text of the run's comment on GitHub, if it has one that is edited.
    pub(crate) checklist: Option<String>,
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
        // A command outputs the text unchanged, and can fail.
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

impl StoredWorkflowRun {
    /// Wraps the record of a run.
    pub(crate) fn new(
        db: &StateDatabase,
        row: WorkflowRunRow,
        workflow: &Workflow,
    ) -> Result<StoredWorkflowRun, DatabaseError> {
        let mode = WorkflowMode::from_text(row.head.mode.as_deref());
        let recorded = match &mode {
            WorkflowMode::Replay { run } => load_recorded_outputs(db, run)?,
            WorkflowMode::Real | WorkflowMode::Dry => HashMap::new(),
        };
        // The first text is made by the first step.
        let checklist = workflow.github.has_checklist.then(String::new);
        Ok(StoredWorkflowRun { row, mode, recorded, checklist })
    }

    /// Returns true if the run is no simulation.
    pub(crate) fn is_real(&self) -> bool {
        self.mode == WorkflowMode::Real
    }

    /// Returns the state of the run before its first journal entry.
    pub(crate) fn initial_state(&self, workflow: Arc<Workflow>) -> ActiveWorkflowRun {
        let row = &self.row;
        let mut state = WorkflowRun::new(workflow, row.context.clone());
        state.status = row.head.status;
        state.scratch = row.scratch.clone();
        state.current_phase = row.head.current_phase.clone();
        state.error = row.head.error.clone();
        state.restarts = u32::try_from(row.head.restart_count).unwrap_or(u32::MAX);
        ActiveWorkflowRun::new(state, row.head.trigger_id.clone(), row.head.started_at)
    }

    /// Loads the state of the run from its journal.
    pub(crate) fn load_state(
        &self,
        db: &StateDatabase,
        workflow: Arc<Workflow>,
    ) -> Result<ActiveWorkflowRun, DatabaseError> {
        let id = &self.row.head.id;
        let places = workflow.phases.iter().enumerate();
        let places: HashMap<String, usize> =
            places.map(|(at, it)| (it.name.to_string(), at)).collect();
        // The queue is read only if there is a budget to divide.
        let granted = match workflow.budget {
            Some(_) => granted_budgets(db, id)?,
            None => HashMap::new(),
        };
        let mut active = self.initial_state(workflow);
        for row in db.journal(id)? {
            let Some(phase) = places.get(&row.phase).copied() else { continue };
            if let (Some(job), None) = (&row.job, row.outcome) {
                let open = load_open_part(db, job, OpenPart::new(phase, row.part, row.seq))?;
                active.load_part(job.clone(), open);
            }
            active.state.apply_entry(&journal_entry(row, phase, &granted));
        }
        active.state.seq = active.state.seq.max(self.row.seq);
        Ok(active)
    }

    /// Returns the place of the files of a phase's skills, if they have any.
    pub(crate) fn skill_source(&self, phase: &str, has_files: bool) -> Option<SkillSource> {
        let definition = self.row.definition.clone().filter(|_| has_files)?;
        Some(SkillSource { definition, phase: phase.to_owned() })
    }

    /// Returns the simulated result of a part; `None` in a real run.
    pub(crate) fn simulate_part(
        &self,
        phase: &Phase,
        agent: &PartAgent<'_>,
        entry: &JournalEntry,
        piece: &PartJobSpec,
    ) -> Option<SimulatedPart> {
        match &self.mode {
            WorkflowMode::Real => return None,
            WorkflowMode::Replay { .. } => {
                let key = (phase.name.to_string(), entry.part);
                if let Some(said) = self.recorded.get(&key) {
                    return Some(SimulatedPart { text: said.text.clone(), fails: !said.consents });
                }
            }
            WorkflowMode::Dry => {
                let asks = matches!(piece.work, PartJobWork::Ask { .. });
                if asks && agent.is_scripted {
                    return None;
                }
            }
        }
        // The work of such a phase is the review, which is posted next.
        if matches!(phase.work, PhaseWork::PostReview) {
            let text = r#"{"skip": true, "summary": "[dry run] nothing is posted"}"#.to_owned();
            return Some(SimulatedPart { text, fails: false });
        }
        let label = entry.part.label(&phase.name);
        let mut text = match &piece.work {
            PartJobWork::Ask { .. } => {
                format!("[dry run] {label}: {} would be asked.", agent.name)
            }
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
        phase: &Phase,
        entry: &JournalEntry,
        now: Timestamp,
    ) -> Option<GateAnswer> {
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

/// Agent of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartAgent<'a> {
    pub(crate) name: &'a str,
    /// True if it is scripted, so that a dry run may execute it.
    pub(crate) is_scripted: bool,
}

/// Converts a row of the journal. The budget of a part in progress is that of its job.
fn journal_entry(row: JournalRow, phase: usize, granted: &HashMap<JobId, i64>) -> JournalEntry {
    let micros = match (&row.job, row.outcome) {
        (Some(job), None) => granted.get(job).copied().unwrap_or(0),
        _ => row.micros,
    };
    JournalEntry {
        phase,
        part: row.part,
        seq: row.seq,
        job: row.job,
        outcome: row.outcome,
        decision: row.decision,
        output: row.output.map(Into::into),
        error: row.error,
        micros,
    }
}

/// Adds the figures of a job's earlier runs to its part.
fn load_open_part(
    db: &StateDatabase,
    job: &JobId,
    part: OpenPart,
) -> Result<OpenPart, DatabaseError> {
    let spent = db.spent_by_job(job)?;
    let row = db.job(job)?;
    let (output, error) = row.map_or((None, None), |row| (row.output_text, row.error));
    Ok(OpenPart { spent, output, error, ..part })
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
        // `uv` also installs the packages that a script declares.
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
