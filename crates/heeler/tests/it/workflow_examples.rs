//! The examples that are shipped: each runs as it is written, with its questions answered.

use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted, wait_for};

/// A folder with an example in it, and the example's fleet.
fn example(name: &str) -> Fleet {
    let fleet = Fleet::empty();
    let told = fleet.run(&["workflow", "example", name, "."]).ok();
    assert!(told.contains(&format!("heeler workflow run {name}")), "{told}");
    fleet.run(&["workflow", "validate"]).ok();
    fleet
}

impl Fleet {
    /// Begins a run, and answers what it asks until it has ended.
    #[track_caller]
    fn run_answering(&self, args: &[&str], answers: &[&[&str]]) -> Json {
        let id = self.run(&[&["workflow", "run"], args, &["--detach", "-q"]].concat()).ok();
        for answer in answers {
            let ask = self.asked();
            self.run(&[&["approvals", answer[0], &ask], &answer[1..]].concat()).ok();
        }
        self.waits_as(id.trim(), "succeeded")
    }
}

#[test]
fn the_build_example_asks_builds_and_fixes_what_the_review_finds() {
    let fleet = example("build");
    let run = fleet.run_answering(&["build"], &[&["approve"]]);
    let review = &run["phases"][3];
    let parts: Vec<&str> =
        review["parts"].as_array().unwrap().iter().map(|it| it["part"].as_str().unwrap()).collect();
    assert_eq!(parts, ["work", "fix:1", "recheck:1"]);
    assert_eq!(review["parts"][0]["decision"], "request_changes");
    assert_eq!(review["parts"][2]["decision"], "approved");
    assert!(review["output"].as_str().unwrap().contains("Hello, world!"), "{review}");
    assert_eq!(fleet.read("test.log"), "Hello, Ada\n");
}

#[test]
fn the_build_example_ends_where_its_plan_is_refused() {
    let fleet = example("build");
    let id = fleet.run(&["workflow", "run", "build", "--detach", "-q"]).ok();
    fleet.run(&["approvals", "reject", &fleet.asked(), "--reason", "too small"]).ok();
    let run = fleet.waits_as(id.trim(), "failed");
    assert_eq!(run["phases"][1]["status"], "skipped", "{run}");
    assert!(!fleet.file("greet.sh").exists());
}

#[test]
fn the_interview_example_asks_until_it_knows_enough_and_writes_it_down() {
    let fleet = example("interview");
    // What people say is text, also where it looks like a template.
    let answers = [&["reply", "{{ idea }} for my mother"][..], &["reply", "Water twice"]];
    let run = fleet.run_answering(&["interview", "-i", "idea=A garden planner"], &answers);
    let said = &run["scratch"]["answers"]["qa"];
    assert_eq!(said[0]["question"], "Who is it for?");
    assert_eq!(said[1]["answer"], "Water twice");
    let idea = fleet.read("idea.md");
    assert!(idea.starts_with("# A garden planner"), "{idea}");
    assert!(idea.contains("**Who is it for?** {{ idea }} for my mother"), "{idea}");
}

#[test]
fn the_nightly_example_looks_after_each_repository_and_reports() {
    let fleet = example("nightly");
    let listed = fleet.json(&["workflow", "list", "--json"]);
    assert_eq!(listed["workflows"][0]["crons"][0]["schedule"], "0 3 * * *");
    let schedules = fleet.json(&["schedule", "list", "--json"]);
    assert_eq!(schedules["schedules"][0]["workflow"], "nightly");
    let schedules = fleet.run(&["schedule", "list"]).ok();
    assert!(schedules.contains("WORKFLOW") && schedules.contains("  nightly\n"), "{schedules}");
    let run = fleet.run_answering(&["nightly"], &[]);
    let care = &run["phases"][1];
    assert_eq!(care["items"], 3, "{care}");
    let jobs = care["parts"].as_array().unwrap().iter().filter(|it| !it["job"].is_null());
    assert_eq!(jobs.count(), 3, "{care}");
    let report = fleet.read("report.md");
    assert_eq!(report.matches("All is well here.").count(), 3, "{report}");
}

#[test]
fn an_example_is_not_written_over_anything() {
    let fleet = Fleet::empty();
    assert!(fleet.run(&["workflow", "example"]).ok().contains("nightly"));
    fleet.write("build/mine.txt", "mine");
    let told = fleet.run(&["workflow", "example", "build"]).fails(5);
    assert!(told.contains("build is in use"), "{told}");
    fleet.run(&["workflow", "example", "nothing"]).fails(2);
    fleet.run(&["workflow", "example", "build", "other"]).ok();
    wait_for("the file", || fleet.file("other/workflows/build.yaml").exists().then_some(()));
}

#[test]
fn every_workflow_of_the_guide_is_valid_and_can_be_played() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workflows.md"));
    let guide = guide.unwrap();
    let blocks = guide.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let blocks: Vec<&str> = blocks.collect();
    assert!(blocks.len() >= 8, "{}", blocks.len());
    let agent = scripted("{say: 'I did what you asked.'}");
    let fleet = fleet(&[("coder", &agent)]);
    for (number, block) in blocks.iter().enumerate() {
        fleet.write(&format!("workflows/{number}.yaml"), block);
    }
    let validated = fleet.run(&["workflow", "validate"]);
    assert_eq!(validated.stderr, "", "no warnings either");
    validated.ok();
    let listed = fleet.json(&["workflow", "list", "--json"]);
    for workflow in listed["workflows"].as_array().unwrap() {
        let name = workflow["name"].as_str().unwrap();
        fleet.run(&["workflow", "run", name, "--dry-run"]).ok();
    }
}
