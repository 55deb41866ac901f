//! Files that agents hand over, from the tool to the backup.

use camino::Utf8PathBuf;
use serde_json::json;

use crate::fleet::Fleet;

const AGENTS: &str = "
agents:
  - name: sender
    runtime: scripted
    script:
      - write: report.md
        text: all is well
      - write: Cargo.lock
        text: the lock of another
      - write: data.jsonl
        text: '{\"needle\": 1}'
      - call: mcp__heeler-files__send_file
        input: {file_path: report.md, message: read this}
      - call: mcp__heeler-files__send_file
        input: {file_path: Cargo.lock}
      - call: mcp__heeler-files__send_file
        input: {file_path: data.jsonl, filename: half a line.jsonl}
      - call: mcp__heeler-files__send_file
        input: {file_path: /etc/hostname}
      - say: '{output}'
  - name: quiet
    runtime: scripted
    script: [{say: Nothing to hand over.}]
";

fn fleet() -> Fleet {
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", AGENTS);
    fleet
}

fn newest(fleet: &Fleet) -> String {
    let jobs = fleet.json(&["jobs", "--json"]);
    jobs["jobs"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_that_an_agent_hands_over_is_kept_listed_and_backed_up() {
    let fleet = fleet();
    let said = fleet.run(&["trigger", "sender"]).ok();
    assert!(said.contains("is not in the working directory"), "{said}");
    let id = newest(&fleet);
    let job = fleet.json(&["jobs", "show", &id, "--json"]);
    let files = job["job"]["files"].as_array().unwrap();
    let named: Vec<_> = files.iter().map(|file| (&file["name"], &file["bytes"])).collect();
    let expected = [
        (&json!("report.md"), &json!(11)),
        (&json!("Cargo.lock"), &json!(19)),
        (&json!("half a line.jsonl"), &json!(13)),
    ];
    assert_eq!(named, expected, "{job:#}");
    let path = |at: usize| Utf8PathBuf::from(files[at]["path"].as_str().unwrap());
    assert!(path(0).starts_with(fleet.state_dir().join(format!("jobs/{id}/files"))));
    assert_eq!(std::fs::read_to_string(path(0)).unwrap(), "all is well");

    let rows = fleet.read(&format!(".heeler/jobs/{id}.jsonl"));
    let mut rows =
        rows.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let row = rows.find(|row| row["subtype"] == "file_sent").expect("a row tells of it");
    assert_eq!(
        (&row["type"], &row["name"], &row["bytes"], &row["path"]),
        (&json!("system"), &json!("report.md"), &json!(11), &files[0]["path"])
    );
    let shown = fleet.run(&["jobs", "show", &id]).ok();
    assert!(shown.contains(&format!("{} (11 B)", path(0))), "{shown}");

    // They are nobody's transcripts and locks.
    let found = fleet.run(&["doctor", "--json"]).ok();
    assert!(!found.contains("half a line"), "{found}");
    let hits = fleet.run(&["search", "needle", "--json"]).ok();
    assert!(!hits.contains("/files/"), "{hits}");
    let content = [0, 1, 2].map(|at| std::fs::read(path(at)).unwrap());
    fleet.run(&["backup", "all.tar.gz"]).ok();
    std::fs::remove_dir_all(fleet.state_dir()).unwrap();
    fleet.run(&["restore", "all.tar.gz", "--yes"]).ok();
    assert_eq!([0, 1, 2].map(|at| std::fs::read(path(at)).unwrap()), content);
}

#[test]
fn a_job_that_hands_nothing_over_has_no_folder_for_it() {
    let fleet = fleet();
    fleet.run(&["trigger", "quiet"]).ok();
    let id = newest(&fleet);
    assert!(!fleet.file(&format!(".heeler/jobs/{id}")).exists());
    assert_eq!(fleet.json(&["jobs", "show", &id, "--json"])["job"]["files"], json!([]));
    assert!(!fleet.run(&["jobs", "show", &id]).ok().contains("files:"));
}
