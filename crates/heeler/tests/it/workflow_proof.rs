//! Random workflows of real jobs whose daemon is killed again and again: no part that is over is done
//! twice, none is lost, and the run ends as one that nobody disturbed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use heeler_engine::fault::FaultPoint;
use heeler_engine::{CommandReply, DaemonCommand, WorkflowOperation, WorkflowRunRequest};
use heeler_model::workflow::{PhasePart, WorkflowRunStatus};
use heeler_model::{ApprovalAnswer, ApprovalStatus, WorkflowRunId};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::{ApprovalFilter, JournalRow, StoreReader};
use heeler_testkit::ProofSettings;
use serde_json::{Value as Json, json};

use crate::daemon_kills::{Herd, Life};
use crate::trigger::wait_for;

/// A round takes a second: more of them would take hours.
const ROUNDS_MAX: u64 = 3_000;

/// About 70 phases, and 25 deaths at fault points beside as many at random instants: every kind of phase
/// is there. `daemon_kills` has the deaths at every fault point.
const ROUNDS_IN_CI: u64 = 20;

/// How many random instants a run's daemons die at, at most.
const KILLS_MAX: u8 = 4;

fn random_workflow(random: &mut fastrand::Rng) -> Json {
    let count = random.usize(2..6);
    let phases: Vec<Json> = (0..count).map(|place| random_phase(place, random)).collect();
    json!({ "name": "flow", "max_parallel": random.u8(1..4), "phases": phases })
}

fn random_phase(place: usize, random: &mut fastrand::Rng) -> Json {
    let note = "echo $HEELER_RUN >> ran";
    let on: Vec<String> =
        (0..place).filter(|_| random.u8(0..3) == 0).map(|on| format!("p{on}")).collect();
    let mut phase = json!({ "name": format!("p{place}"), "depends_on": &on });
    match random.u8(0..8) {
        0 => phase["type"] = json!("context"),
        1..4 => {
            phase["type"] = json!("bash");
            phase["command"] = json!(format!("{note}; echo out {place}"));
        }
        4 => {
            // It fails the first time.
            phase["type"] = json!("bash");
            let mark = format!("failed-{{{{ run.id }}}}-{place}");
            phase["command"] = json!(format!("{note}; mkdir {mark} && exit 1; echo out {place}"));
            phase["retry"] = json!({ "max": 1, "backoff": "100ms" });
        }
        _ => phase["prompt"] = json!(format!("out {place}")),
    }
    let is_context = phase["type"] == json!("context");
    match random.u8(0..6) {
        0 if !is_context => {
            let mark = format!("passes-{{{{ run.id }}}}-{place}");
            let check = format!("{note}; echo x >> {mark}; test $(wc -l < {mark}) -ge 2");
            phase["generic_loop"] = json!({ "max_iterations": 3, "until_bash": check });
        }
        1 if !is_context => {
            phase["foreach"] = json!(["x", "y", "z"]);
            // Each item fails by itself: which of them is first is chance.
            if let Some(command) = phase["command"].as_str() {
                let mark = format!("-{place} ");
                phase["command"] =
                    json!(command.replace(&mark, &format!("-{place}-{{{{ item }}}} ")));
            }
        }
        2 => phase["approval_gate"] = json!(format!("gate{place}")),
        _ => {}
    }
    // Only of what it waits for is the output surely known.
    if random.u8(0..3) == 0 && on.contains(&"p0".to_owned()) {
        phase["skip_if"] = json!("'out 0' in outputs.p0");
    }
    phase
}

struct World {
    herd: Herd,
    life: Option<Life>,
    client: Option<DaemonClient>,
}

impl World {
    fn new(workflow: &Json) -> World {
        let script = "[{run: 'echo $HEELER_RUN >> ran'}, {say: 'said {prompt}'}]";
        let herd = Herd::of(&format!(
            "agents:\n  - {{name: coder, runtime: scripted, script: {script}, \
             instances: {{max_concurrent: 4}}}}\n"
        ));
        fs::create_dir(herd.fleet.file("workflows")).unwrap();
        herd.fleet.write("workflows/flow.yaml", &workflow.to_string());
        World { herd, life: None, client: None }
    }

    fn start(&mut self, args: &[&str]) {
        let mut life = self.herd.start(args);
        self.client = self.herd.connect(&mut life);
        self.life = Some(life);
    }

    fn kill(&mut self) {
        self.client = None;
        if let Some(mut life) = self.life.take() {
            life.kill();
        }
    }

    /// Asks; nothing if the daemon died.
    fn ask(&mut self, command: &DaemonCommand) -> Option<CommandReply> {
        match self.client.as_mut()?.send_command(command, None) {
            Ok(answer) => Some(answer),
            // It died, or closed a connection that was not used for a while.
            Err(DaemonClientError::Io { .. } | DaemonClientError::NoDaemon { .. }) => {
                self.client = self.herd.connect(self.life.as_mut()?);
                None
            }
            // Somebody was quicker: an earlier answer whose receipt was lost.
            Err(DaemonClientError::Refused(refused)) => {
                assert!(refused.message.contains("already"), "{refused:?}");
                None
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn run(&mut self, trigger_id: &str) -> Option<WorkflowRunId> {
        let trigger_id = Some(trigger_id.to_owned());
        let order = WorkflowOperation::Run(WorkflowRunRequest {
            trigger_id,
            ..WorkflowRunRequest::manual_run("flow")
        });
        match self.ask(&DaemonCommand::Workflow { order, by: "the test".to_owned() })? {
            CommandReply::WorkflowRun { run, .. } => Some(run),
            other => panic!("{other:?}"),
        }
    }

    /// Says yes to all that is asked.
    fn approve(&mut self, reader: &StoreReader) {
        let filter = ApprovalFilter { status: Some(ApprovalStatus::Pending), ..Default::default() };
        for approval in reader.approvals(&filter, None, 100).unwrap() {
            let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
            let by = "the test".to_owned();
            self.ask(&DaemonCommand::Approval { approval: approval.id, answer, by });
        }
    }

    fn status(&self, run: &WorkflowRunId) -> WorkflowRunStatus {
        status(&self.herd.reader(), run)
    }

    /// Goes on for a random time, or until the run or the daemon has ended.
    fn rest(&mut self, run: &WorkflowRunId, random: &mut fastrand::Rng) {
        let until = Instant::now() + Duration::from_millis(random.u64(0..400));
        // Not kept beyond this life: a daemon that starts is to be the first to open the database.
        let reader = self.herd.reader();
        while Instant::now() < until && !status(&reader, run).is_final() {
            if self.life.as_mut().is_none_or(Life::has_ended) {
                return;
            }
            self.approve(&reader);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn finish(&mut self, run: &WorkflowRunId) {
        let reader = self.herd.reader();
        wait_for("the end of a workflow", || {
            assert!(!self.life.as_mut().is_none_or(Life::has_ended), "this daemon was not killed");
            self.approve(&reader);
            status(&reader, run).is_final().then_some(())
        });
    }

    fn journal(&self, run: &WorkflowRunId) -> Vec<JournalRow> {
        self.herd.reader().journal(run).unwrap()
    }

    /// Returns what each part came to: how it ended each time, and what it said.
    fn outcome(&self, run: &WorkflowRunId) -> BTreeMap<(String, PhasePart), Vec<String>> {
        let mut all: BTreeMap<(String, PhasePart), Vec<String>> = BTreeMap::new();
        for row in self.journal(run) {
            let said = format!("{:?} {:?} {:?}", row.outcome, row.decision, row.output);
            all.entry((row.phase, row.part)).or_default().push(said);
        }
        all
    }

    /// Checks that every job of a run was done once, by its own account.
    fn check(&self, run: &WorkflowRunId) {
        let reader = self.herd.reader();
        let ran = fs::read_to_string(self.herd.fleet.file("ran")).unwrap_or_default();
        let mut times: HashMap<&str, usize> = HashMap::new();
        ran.lines().for_each(|line| *times.entry(line).or_default() += 1);
        for row in self.journal(run) {
            let Some(job) = &row.job else { continue };
            let runs = reader.runs_of_job(job).unwrap();
            let count: usize =
                runs.iter().map(|it| times.get(&*it.id.to_string()).copied().unwrap_or(0)).sum();
            assert_eq!(count, 1, "{} {} was done {count} times", row.phase, row.part);
        }
        let open = self.journal(run).into_iter().filter(|row| row.outcome.is_none());
        assert_eq!(open.count(), 0, "something of it is still open");
    }
}

fn status(reader: &StoreReader, run: &WorkflowRunId) -> WorkflowRunStatus {
    reader.workflow_run(run).unwrap().unwrap().head.status
}

#[test]
fn proof_workflows_whose_daemon_is_killed_end_as_they_would() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    let mut deaths = BTreeSet::new();
    for round in 0..proof.rounds.min(ROUNDS_MAX) {
        println!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let random = &mut proof.random(round);
        let workflow = random_workflow(random);
        let mut world = World::new(&workflow);
        world.start(&[]);
        let calm = world.run("calm").unwrap();
        world.finish(&calm);
        world.check(&calm);

        let mut rough = None;
        for _ in 0..random.u8(1..=KILLS_MAX) {
            world.kill();
            // One of them leaves a runner that is stopped, and that nobody here would let go on.
            let late = FaultPoint::RunnerLate;
            let points: Vec<FaultPoint> =
                FaultPoint::AT_WORK.iter().copied().filter(|point| *point != late).collect();
            let point = points[random.usize(..points.len())];
            match random.bool() {
                true => {
                    deaths.insert(point.name());
                    world.start(&["--fault", &format!("{}:{}", point.name(), random.u8(1..6))]);
                }
                false => world.start(&[]),
            }
            // Asked for again only while nobody was told of it.
            rough = rough.or_else(|| world.run("rough"));
            if let Some(run) = &rough {
                world.rest(run, random);
            }
        }
        world.kill();
        world.start(&[]);
        let rough = rough.or_else(|| world.run("rough")).unwrap();
        world.finish(&rough);
        world.check(&rough);
        assert_eq!(world.status(&rough), world.status(&calm), "{workflow}");
        assert_eq!(world.outcome(&rough), world.outcome(&calm), "{workflow}");
    }
    println!("died at {deaths:?}");
}
