//! `kill -9` of the runner around the creation of its container, with a real engine.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use heeler_config::{ImagePull, MountMode};
use heeler_model::run::{ContainerSpec, ContainerVolume, RunEnd, SandboxSpec};
use heeler_testkit::{TEST_IMAGE, TestEngine};

use super::*;
use crate::fault::{RunnerFaultPoint, arm};
use crate::settle_run;

const DIR: &str = "HEELER_TEST_CONTAINER_DIR";
const POINT: &str = "HEELER_TEST_CONTAINER_POINT";
const ENGINE: &str = "HEELER_TEST_CONTAINER_ENGINE";

const POINTS: [RunnerFaultPoint; 4] = [
    RunnerFaultPoint::ContainerNamed,
    RunnerFaultPoint::ContainerCreated,
    RunnerFaultPoint::ContainerStarted,
    RunnerFaultPoint::Spawned,
];

/// A run of a command in a container.
fn contained_fixture(script: &str, engine: &Utf8Path) -> RunFixture {
    let mut trial = command_fixture(script);
    let container = ContainerSpec {
        pull: ImagePull::Never,
        volumes: vec![ContainerVolume {
            source: "/usr".to_owned(),
            is_named: false,
            target: "/usr".to_owned(),
            mode: MountMode::ReadOnly,
        }],
        ..ContainerSpec::new(engine.to_owned(), TEST_IMAGE.to_owned())
    };
    let container = Some(container);
    trial.brief.sandbox = Some(SandboxSpec { container, ..SandboxSpec::default() });
    let target = std::env::current_exe().unwrap();
    let program = target.ancestors().nth(2).unwrap().join("heeler-inside-static");
    let copy = trial.host().program.with_file_name("heeler-inside-static");
    std::fs::copy(&program, &copy).unwrap_or_else(|error| {
        panic!("{} is missing, run `cargo xtask inside`: {error}", program.display())
    });
    trial
}

/// Is the process that dies; does nothing when it is run as a test.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
fn be_the_runner_of_a_container() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point: usize = std::env::var(POINT).unwrap().parse().unwrap();
    let engine = std::env::var(ENGINE).unwrap();
    arm(POINTS[point]);
    let trial = contained_fixture("touch ran; exec sleep 1000", Utf8Path::new(&engine));
    let dir = Utf8Path::new(&dir);
    let spec = files::read_spec(dir).unwrap();
    run_with(dir, spec, &trial.host(), &trial.means).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
fn a_runner_that_dies_at_any_time_leaves_no_container() {
    let engine = TestEngine::start();
    for (number, point) in POINTS.iter().enumerate() {
        let trial = contained_fixture("", &engine.socket());
        trial.folder.write_spec(&trial.spec);
        let died = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "run::tests::containers::be_the_runner_of_a_container",
                "--nocapture",
            ])
            .env(DIR, &trial.folder.dir)
            .env(POINT, number.to_string())
            .env(ENGINE, engine.socket())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(died.signal(), Some(9), "{point:?}");
        let result = settle_run(&trial.dir(), &trial.spec.home, now).unwrap();
        assert_eq!(result.end, RunEnd::Interrupted, "{point:?}");
        assert_eq!(engine.containers(), [""; 0], "{point:?}");
        // The result is final.
        assert_eq!(settle_run(&trial.dir(), &trial.spec.home, now).unwrap(), result, "{point:?}");
    }
}
