//! Runs of workflows as the dispatcher knows them, and what can be asked of workflows.
//!
//! A run that is only played asks no agent and runs no command: what would have been said comes from
//! an earlier run, or is made up. Start at [`WorkflowOrder`] and [`Running`].

use std::collections::HashMap;
use std::sync::Arc;

use heeler_model::config::{Agent, Runtime};
use heeler_model::workflow::{
    Answer, Course, CourseStatus, Decision, Entry, Happening, How, Language, Part, Piece,
    PieceWork, Repeat, Workflow,
};
use heeler_model::{JobId, PhaseJob, PhaseOrder, TriggerType, Wanted, WorkflowRunId};
use heeler_store::{Db, DbError, WorkflowRunRow};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::setup::Setup;

/// What a person wants of workflows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowOrder {
    /// Run one.
    Run(WorkflowWanted),
    /// End a run.
    Cancel {
        /// Which.
        run: WorkflowRunId,
        /// At once, not gracefully.
        now: bool,
    },
    /// Let a run go on that has ended: what has failed is done anew.
    Retry {
        /// Which.
        run: WorkflowRunId,
        /// This phase too, and all that waits for it.
        from: Option<String>,
    },
    /// Let runs of a workflow start.
    Enable {
        /// Its name.
        workflow: String,
    },
    /// Do not let runs of a workflow start.
    Disable {
        /// Its name.
        workflow: String,
    },
}

/// A run of a workflow that is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowWanted {
    /// The workflow's name.
    pub workflow: String,
    /// What it is given; text counts as what the input is.
    #[serde(default)]
    pub inputs: Map<String, Json>,
    /// What it is about: while a run about the same goes on, that is the answer.
    #[serde(default)]
    pub trigger_id: Option<String>,
    /// What starts it.
    #[serde(default = "manual")]
    pub trigger: TriggerType,
    /// Whether it is only played.
    #[serde(default)]
    pub mode: WorkflowMode,
}

impl WorkflowWanted {
    /// Asks for a run as a person would who says nothing else.
    pub fn of(workflow: &str) -> WorkflowWanted {
        WorkflowWanted {
            workflow: workflow.to_owned(),
            inputs: Map::new(),
            trigger_id: None,
            trigger: TriggerType::Manual,
            mode: WorkflowMode::Real,
        }
    }
}

/// A run that was begun, or was there already.
pub(crate) struct BegunRun {
    pub(crate) run: WorkflowRunId,
    pub(crate) status: CourseStatus,
    pub(crate) is_new: bool,
}

fn manual() -> TriggerType {
    TriggerType::Manual
}

/// Whether a run is only played.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowMode {
    /// It is run.
    #[default]
    Real,
    /// What would be said is made up, unless an agent plays a script anyway.
    Dry,
    /// What was said in an earlier run is said again.
    Replay {
        /// That run.
        run: WorkflowRunId,
    },
}

impl WorkflowMode {
    /// Returns how it is written down.
    pub(crate) fn as_text(&self) -> Option<String> {
        match self {
            WorkflowMode::Real => None,
            WorkflowMode::Dry => Some("dry".to_owned()),
            WorkflowMode::Replay { run } => Some(format!("replay:{run}")),
        }
    }

    fn read(text: Option<&str>) -> WorkflowMode {
        match text {
            None => WorkflowMode::Real,
            Some(text) => match text.strip_prefix("replay:").and_then(|run| run.parse().ok()) {
                Some(run) => WorkflowMode::Replay { run },
                None => WorkflowMode::Dry,
            },
        }
    }
}

/// A run that has not ended.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) row: WorkflowRunRow,
    pub(crate) course: Course,
    /// Whether more of it can begin at once.
    pub(crate) has_more: bool,
    /// What happens next without anybody's doing.
    pub(crate) next: Vec<Happening>,
    mode: WorkflowMode,
    /// What was said in the run that is replayed.
    said: HashMap<(String, Part), Said>,
}

/// What is done in a part of a run that is only played.
#[derive(Debug)]
pub(crate) struct Played {
    text: String,
    fails: bool,
}

/// Places that a script fills in its texts; what was said before is to stay as it is.
const SCRIPT_WORDS: [&str; 8] =
    ["{prompt}", "{turn}", "{remembered}", "{session}", "{cwd}", "{answer}", "{output}", "{n}"];

impl Played {
    /// Returns what a job is asked and does to play it.
    pub(crate) fn job(self, prompt: String) -> (String, PhaseJob) {
        let Played { text, fails } = self;
        match fails || SCRIPT_WORDS.iter().any(|word| text.contains(word)) {
            true => {
                let command = format!("cat; exit {}", u8::from(fails));
                (text, PhaseJob::Command { command, env: Vec::new() })
            }
            false => (prompt, PhaseJob::Play { text }),
        }
    }
}

/// What was said in an earlier run.
#[derive(Debug, Clone)]
struct Said {
    text: String,
    consents: bool,
}

impl Running {
    /// Begins a run.
    pub(crate) fn begin(
        db: &Db,
        row: WorkflowRunRow,
        workflow: Arc<Workflow>,
    ) -> Result<Running, DbError> {
        let mut course = Course::new(workflow, row.context.clone());
        course.status = row.head.status;
        course.scratch = row.scratch.clone();
        course.current = row.head.current_phase.clone();
        course.error = row.head.error.clone();
        course.restarts = u32::try_from(row.head.restart_count).unwrap_or(u32::MAX);
        let mode = WorkflowMode::read(row.head.mode.as_deref());
        let said = match &mode {
            WorkflowMode::Replay { run } => said_in(db, run)?,
            WorkflowMode::Real | WorkflowMode::Dry => HashMap::new(),
        };
        Ok(Running { row, course, has_more: false, next: Vec::new(), mode, said })
    }

    /// Reads a run from its journal.
    pub(crate) fn restore(
        db: &Db,
        row: WorkflowRunRow,
        workflow: Arc<Workflow>,
    ) -> Result<Running, DbError> {
        let places = workflow.phases.iter().enumerate();
        let places: HashMap<&str, usize> = places.map(|(at, it)| (it.name.as_str(), at)).collect();
        let journal = db.journal(&row.head.id)?;
        let granted = match workflow.budget {
            Some(_) => granted(db, &row.head.id)?,
            None => HashMap::new(),
        };
        let entries: Vec<Entry> = journal
            .into_iter()
            .filter_map(|row| {
                Some(Entry {
                    phase: *places.get(row.phase.as_str())?,
                    part: row.part,
                    seq: row.seq,
                    job: row.job.clone(),
                    how: row.how,
                    decision: row.decision,
                    output: row.output.map(Into::into),
                    error: row.error,
                    micros: match (&row.job, row.how) {
                        (Some(job), None) => granted.get(job).copied().unwrap_or(0),
                        _ => row.micros,
                    },
                })
            })
            .collect();
        let mut running = Running::begin(db, row, Arc::clone(&workflow))?;
        entries.iter().for_each(|entry| running.course.fold(entry));
        running.course.seq = running.course.seq.max(running.row.seq);
        // The last step may have left something to be begun.
        running.has_more = running.row.head.status != CourseStatus::Queued;
        Ok(running)
    }

    /// Returns what is done in a part without asking or running anything, if the run is only played.
    pub(crate) fn play(
        &self,
        setup: &Setup,
        agent: &str,
        entry: &Entry,
        piece: &Piece,
    ) -> Option<Played> {
        let phase = &self.course.workflow.phases[entry.phase];
        match &self.mode {
            WorkflowMode::Real => return None,
            WorkflowMode::Replay { .. } => {
                let key = (phase.name.to_string(), entry.part);
                if let Some(said) = self.said.get(&key) {
                    return Some(Played { text: said.text.clone(), fails: !said.consents });
                }
            }
            WorkflowMode::Dry => {
                let is_scripted = |it: &Agent| matches!(it.runtime, Runtime::Scripted(_));
                let asks = matches!(piece.work, PieceWork::Ask { .. });
                if asks && setup.agent(agent).is_some_and(is_scripted) {
                    return None;
                }
            }
        }
        let label = entry.part.label(&phase.name);
        let mut text = match &piece.work {
            PieceWork::Ask { .. } => format!("[dry run] {label}: {agent} would be asked."),
            PieceWork::Bash { command, .. } => format!("[dry run] {label}: $ {command}"),
            PieceWork::Script { .. } => format!("[dry run] {label}: a script would run."),
        };
        // Loops end and markers are there, so that the play comes to every phase.
        match (&phase.repeat, &phase.on_output.requires_marker) {
            (Repeat::Review(_), _) => text.push_str("\nVERDICT: APPROVED"),
            (Repeat::Until(_), _) => text.push_str("\nREADY"),
            _ => {}
        }
        if let Some(marker) = &phase.on_output.requires_marker {
            text.push('\n');
            text.push_str(marker);
        }
        Some(Played { text, fails: false })
    }

    /// Returns the answer to a question that nobody is asked, if the run is only played.
    pub(crate) fn play_answer(&self, entry: &Entry, now: Timestamp) -> Option<Answer> {
        let phase = &self.course.workflow.phases[entry.phase];
        let (said, by) = match &self.mode {
            WorkflowMode::Real => return None,
            WorkflowMode::Dry => (None, "the dry run".to_owned()),
            WorkflowMode::Replay { run } => {
                let key = (phase.name.to_string(), entry.part);
                (self.said.get(&key), format!("the replay of {run}"))
            }
        };
        Some(Answer {
            consents: said.is_none_or(|said| said.consents),
            text: said.map(|said| said.text.clone()).filter(|text| !text.is_empty()),
            by,
            at: now,
            seq: entry.seq,
        })
    }
}

/// Returns what jobs of a run that go on or wait may cost, in millionths of a dollar.
fn granted(db: &Db, run: &WorkflowRunId) -> Result<HashMap<JobId, i64>, DbError> {
    let mut granted = HashMap::new();
    for row in db.queue()? {
        let wanted: Option<Wanted> = serde_json::from_str(&row.wanted).ok();
        let phase: Option<Box<PhaseOrder>> = wanted.and_then(|wanted| wanted.phase);
        let phase = phase.filter(|phase| phase.run == *run);
        granted.extend(phase.and_then(|phase| Some((row.job, phase.micros_left?))));
    }
    Ok(granted)
}

/// Returns what each part of a run came to: the last time that it was done.
fn said_in(db: &Db, run: &WorkflowRunId) -> Result<HashMap<(String, Part), Said>, DbError> {
    let journal = db.journal(run)?.into_iter().filter(|row| row.how.is_some());
    let said = journal.map(|row| {
        // A check is a success by what it said.
        let consents = match row.decision {
            Some(Decision::ConditionNotMet) => !matches!(row.part, Part::Check(_)),
            _ => row.how == Some(How::Succeeded),
        };
        ((row.phase, row.part), Said { text: row.output.unwrap_or_default(), consents })
    });
    Ok(said.collect())
}

/// Returns a shell command that runs the program that it reads.
pub(crate) fn script_command(language: Language) -> String {
    let (extension, run) = match language {
        Language::Js => ("mjs", "node \"$file\""),
        Language::Ts => ("mts", "node --experimental-strip-types --no-warnings \"$file\""),
        Language::Python => (
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
