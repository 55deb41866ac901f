//! Secrets that must be seen nowhere (promise P9).
//!
//! Runs are given secrets by variable, by prompt and by all that a script says or prints, in every
//! encoding. Then everything that we wrote is searched, by encoders of the test's own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use fastrand::Rng;
use heeler_config::RuntimeType;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::JobRequest;
use heeler_model::run::McpServerSpec;
use heeler_testkit::{ModelScript, ModelScriptStep, ProofSettings};
use serde_json::json;

use crate::daemon_kills::Herd;
use crate::daemon_lives::wanted;
use crate::fleet::Fleet;
use crate::host_runs;
use crate::hosts::{cluster, wait_for_leader};
use crate::rig::Rig;
use crate::web::{Served, bearer, send};

/// How many runs go on at once.
const WORKERS: u64 = 2;

/// About 140 steps of 14 kinds: one of them is missed once in 2,000 times.
const RUNS_IN_CI: u64 = 40;

/// How often the arguments of all processes are looked at. The scripts' own processes live longer, and
/// without a rest the looks would take the processors from the runs.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A secret and what it looks like.
struct Canary {
    secret: String,
    /// The secret in other forms, as a program might print them.
    forms: Vec<String>,
    /// What must not be found: of each form the part that is the same wherever it stands.
    needles: Vec<String>,
}

impl Canary {
    fn new(random: &mut Rng) -> Canary {
        Canary::of(secret(random))
    }

    fn of(secret: String) -> Canary {
        let json = quoted(&secret);
        let percent: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
        let every: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut forms =
            vec![secret.clone(), json.clone(), quoted(&json), ascii(&json), percent, every];
        forms.extend([hex.to_uppercase(), hex]);
        let mut needles = forms.clone();
        for before in 0..3 {
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                let encoded = engine.encode(format!("{}{secret}", &"xy"[..before]));
                let from = (before * 8).div_ceil(6);
                let to = (before + secret.len()) * 8 / 6;
                needles.push(encoded[from..to].to_owned());
                forms.push(encoded);
            }
        }
        // Of a key that is shown line by line, all but its fences is secret.
        let lines = secret.lines().filter(|line| line.len() >= 8 && !line.starts_with('-'));
        needles.extend(lines.map(str::to_owned));
        Canary { forms, needles, secret }
    }
}

/// Something that people use as a secret.
fn secret(random: &mut Rng) -> String {
    let alphabet: Vec<char> = match random.u8(..5) {
        0 => ('0'..='9').collect(),
        1 => ('a'..='z').chain('A'..='Z').chain('0'..='9').collect(),
        2 => ('!'..='~').collect(),
        3 => "aZ9 äß日🔑/+=\\\"'<&%{".chars().collect(),
        _ => {
            let line = || (0..40).map(|_| random.alphanumeric()).collect::<String>();
            let lines: Vec<String> = std::iter::repeat_with(line).take(4).collect();
            return format!("-----BEGIN KEY-----\n{}\n-----END KEY-----", lines.join("\n"));
        }
    };
    // The ends are plain, since white space around a secret is not part of it.
    let middle = 16 + random.usize(..40);
    let middle: String = (0..middle).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
    let end: String = (0..4).map(|_| random.digit(10)).collect();
    format!("{}{middle}{end}", random.digit(10))
}

fn quoted(text: &str) -> String {
    let json = json!(text).to_string();
    json[1..json.len() - 1].to_owned()
}

fn ascii(json: &str) -> String {
    let mut ascii = String::new();
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            ascii += &format!("\\u{unit:04x}");
        }
    }
    ascii
}

/// A step that lets the text in this variable out.
fn step(random: &mut Rng, form: &str) -> serde_json::Value {
    let text = format!("it is ${{{form}}}, yes");
    match random.u8(..14) {
        0 => json!({"say": text}),
        1 => json!({"say": text, "chunks": 1 + random.u32(..20)}),
        2 => json!({"think": text}),
        3 => json!({"run": format!("printf '%s' \"${form}\"")}),
        4 => json!({"run": format!("printf '%s' \"${form}\" >&2; exit 3")}),
        5 => json!({"run": format!("printf '%s' \"${form}\" | base64")}),
        6 => {
            json!({"tool": "Fetch", "input": {"url": text.clone(), text.clone(): 1}, "result": text})
        }
        7 => json!({"tool": "Fetch", "input": {}, "result": text, "fails": true}),
        8 => json!({"stderr": text}),
        9 => json!({"raw": text}),
        10 => json!({"raw": format!("{{\"type\":\"mystery\",\"text\":\"${{{form}}}\"}}")}),
        11 => json!({"run": format!("sleep 0.02 # ${{{form}}}")}),
        12 => json!({"spawn": format!("sleep 0.02 # ${{{form}}}"), "setsid": random.bool()}),
        _ => json!({"question": text, "options": [text, "no"]}),
    }
}

/// How a run ends.
fn last_step(random: &mut Rng, form: &str) -> Option<serde_json::Value> {
    let text = format!("it was ${{{form}}}");
    match random.u8(..4) {
        0 => Some(json!({"error": "overloaded", "message": text})),
        1 => Some(json!({"exit": 3})),
        2 => Some(json!({"say": text})),
        _ => None,
    }
}

/// Plays one run with secrets and returns them.
fn play(fleet: &Fleet, random: &mut Rng) -> Vec<Canary> {
    let canaries = vec![Canary::new(random), Canary::new(random)];
    let search = search(&canaries);
    let forms: Vec<&String> = canaries.iter().flat_map(|canary| &canary.forms).collect();
    let names: Vec<String> = (0..forms.len()).map(|number| format!("FORM_{number}")).collect();
    for form in &forms {
        assert!(search.is_match(form.as_str()), "{form:?} would not be found");
    }
    let count = 1 + random.usize(..6);
    let picked: Vec<&String> = (0..=count).map(|_| &names[random.usize(..names.len())]).collect();
    let mut steps: Vec<_> = picked[1..].iter().map(|name| step(random, name)).collect();
    steps.extend(last_step(random, picked[0]));
    let env: serde_json::Map<_, _> =
        names.iter().map(|name| (name.clone(), json!(format!("${{{name}}}")))).collect();
    let agent = json!({
        "name": "canary", "runtime": "scripted", "working_directory": fleet.file("work"),
        "default_prompt": format!("Use ${{{}}}.", names[random.usize(..names.len())]),
        "secrets": ["CANARY"], "env": env, "script": steps,
    });
    fleet.write("agents/canary.yaml", &agent.to_string());

    let (out, err) = (fleet.file("stdout"), fleet.file("stderr"));
    let mut command = fleet.command(&["trigger", "canary", "--output-file"]);
    command.stdout(std::fs::File::create(&out).unwrap()).stdin(Stdio::null());
    command.stderr(std::fs::File::create(&err).unwrap());
    command.env("CANARY", &canaries[0].secret).env("OPS_TOKEN", &canaries[1].secret);
    command.envs(names.iter().zip(&forms)).env("HEELER_LOG", "trace");
    let mut child = command.spawn().unwrap();
    loop {
        let ended = child.try_wait().unwrap();
        check_arguments(&search);
        if let Some(status) = ended {
            // The run may fail as its script says, but it must have been one.
            let said = std::fs::read_to_string(&err).unwrap();
            assert!(matches!(status.code(), Some(0 | 1)), "{status}: {said}\n{agent}");
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for file in [out, err] {
        check_file(&search, &file);
    }
    canaries
}

fn search(canaries: &[Canary]) -> AhoCorasick {
    AhoCorasick::new(canaries.iter().flat_map(|canary| &canary.needles)).unwrap()
}

/// No process has a secret in its arguments.
fn check_arguments(search: &AhoCorasick) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(arguments) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let found = search.find(&arguments);
        assert!(found.is_none(), "a secret in {:?}", String::from_utf8_lossy(&arguments));
    }
}

fn check_file(search: &AhoCorasick, file: &Path) {
    let bytes = std::fs::read(file).unwrap();
    if let Some(found) = search.find(&bytes) {
        let from = found.start().saturating_sub(300);
        let around = &bytes[from..bytes.len().min(found.end() + 100)];
        panic!("a secret in {}: {}", file.display(), String::from_utf8_lossy(around));
    }
    assert!(search.find(file.as_os_str().as_encoded_bytes()).is_none(), "{}", file.display());
}

/// Every file under a folder, but for those in a folder in it that is the agent's own.
fn files(root: &Path, agents_own: &[&str]) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let is_own = agents_own.iter().any(|name| entry.path() == root.join(name));
            if kind.is_dir() && !is_own {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files
}

#[test]
fn proof_no_secret_reaches_a_file_a_reply_or_an_argument() {
    let proof = ProofSettings::new(RUNS_IN_CI);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let proof = &proof;
                scope.spawn(move || work(proof, worker))
            })
            .collect();
        let well = workers.into_iter().all(|worker| worker.join().is_ok());
        assert!(well, "seed {}", proof.seed);
    });
}

/// Plays a worker's share of the runs, then searches all that they left.
fn work(proof: &ProofSettings, worker: u64) {
    let fleet = Fleet::new();
    std::fs::create_dir(fleet.file("work")).unwrap();
    fleet.write("heeler.yaml", "agents: [{path: agents/canary.yaml}]\n");
    let mut canaries = Vec::new();
    for round in (worker..proof.rounds).step_by(WORKERS as usize) {
        canaries.append(&mut play(&fleet, &mut proof.random(round)));
    }
    let search = search(&canaries);
    // Home and temporary files are in the fleet's folder too.
    let files = files(fleet.path(), &["work"]);
    assert!(files.iter().any(|file| file.ends_with("heeler.db")), "{files:?}");
    files.iter().for_each(|file| check_file(&search, file));
    // They were let out: at least each prompt is in the log of its job.
    let logs = files.iter().filter(|file| file.parent().is_some_and(|dir| dir.ends_with("jobs")));
    let logs = logs.filter(|file| file.extension().is_some_and(|it| it == "jsonl"));
    let marked = logs.filter(|log| std::fs::read_to_string(log).unwrap().contains("[secret]"));
    assert_eq!(marked.count() * 2, canaries.len());
}

/// An agent of one host lets a secret out in all its forms. The other host leads, and has copies of the rows,
/// text and standard error.
#[test]
fn no_secret_reaches_the_database_or_a_file_of_two_hosts() {
    let mut random = Rng::new();
    let canary = Canary::new(&mut random);
    let names: Vec<&'static str> =
        (0..canary.forms.len()).map(|number| &*format!("FORM_{number}").leak()).collect();
    let mut steps: Vec<_> = names.iter().map(|name| step(&mut random, name)).collect();
    steps.push(json!({"stderr": "it was ${FORM_0}"}));
    let env: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), json!(format!("${{{name}}}")))).collect();
    let cluster = cluster();
    let [first, second] = [(); 2].map(|()| {
        let agent = json!({
            "name": "canary", "runtime": "scripted", "working_directory": "work", "host": "beta",
            "default_prompt": "Use ${FORM_0}.", "secrets": ["CANARY"], "env": env, "script": steps,
        });
        let config =
            json!({"store": cluster.url("fleet"), "web": {"enabled": false}, "agents": [agent]});
        let mut herd = Herd::of(&config.to_string());
        std::fs::create_dir(herd.fleet.file("work")).unwrap();
        herd.env.extend(names.iter().copied().zip(canary.forms.iter().cloned()));
        herd.env.push(("CANARY", canary.secret.clone()));
        herd.env.push(("HEELER_LOG", "trace".to_owned()));
        herd
    });
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let request = JobRequest { output_file: true, ..wanted("canary") };
    let command = DaemonCommand::Trigger(Box::new(request));
    let CommandReply::Job { job, .. } = host_runs::send(&first, &mut alpha, &command, Some("one"))
    else {
        panic!("it starts a job");
    };
    let ended = first.ends(&job);
    host_runs::wait_for_copy(&second, &first, &job);
    assert!(host_runs::rows(&first, &job).contains("[secret]"), "it was let out: {ended:#?}");
    let search = search(std::slice::from_ref(&canary));
    let check_database = || {
        let dump = cluster.dump("fleet");
        let found = search.find(&dump).map(|found| {
            let from = found.start().saturating_sub(300);
            String::from_utf8_lossy(&dump[from..found.end()]).into_owned()
        });
        assert_eq!(found, None, "a secret in the database");
    };
    // Parts of files are bytes, of which a dump has the hexadecimal digits.
    check_database();
    host_runs::stop(&second, beta);
    host_runs::stop(&first, alpha);
    check_database();
    for herd in [&first, &second] {
        let files = files(herd.fleet.path(), &["work"]);
        assert!(files.iter().any(|file| file.ends_with("store.json")), "{files:?}");
        files.iter().for_each(|file| check_file(&search, file));
    }
}

#[test]
fn a_secret_of_claudes_reaches_no_file_of_ours_and_no_argument() {
    for runtime in [RuntimeType::Sdk, RuntimeType::Cli] {
        let rig = Rig::new();
        let canary = Canary::new(&mut Rng::new());
        let header: String = std::iter::repeat_with(fastrand::alphanumeric).take(40).collect();
        let search = AhoCorasick::new(canary.needles.iter().chain([&header])).unwrap();
        let show = ("Bash", json!({"command": "printf '%s' \"$CANARY\" | base64"}));
        let add = ("mcp__adder__add", json!({"a": 1, "b": 2}));
        // Crates of others log what a tool is given.
        let send = ("mcp__heeler-files__send_file", json!({"file_path": canary.secret}));
        let script =
            ModelScript::new().step(ModelScriptStep::tools([show, add, send])).text(&canary.secret);
        let mut plan = rig.plan(runtime, &format!("{} {script}", canary.secret));
        plan.brief.secrets = vec![canary.secret.clone(), header.clone()];
        plan.brief.send_files_to = Some(rig.path("sent"));
        plan.brief.env.insert("CANARY".to_owned(), canary.secret.clone());
        let headers = [("authorization".to_owned(), format!("Bearer {header}"))].into();
        let (url, timeout_ms, always_load) = (rig.api.mcp_url(), None, None);
        let adder = McpServerSpec::Http { url, headers, timeout_ms, always_load };
        plan.claude().mcp_servers = [("adder".to_owned(), adder)].into();
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        plan.claude().system_prompt = Some(format!("It is {}.", canary.secret));
        let mut live = rig.start(plan);
        while live.child.try_wait().unwrap().is_none() {
            check_arguments(&search);
            std::thread::sleep(LOOK_EVERY);
        }
        let end = live.finish();
        assert_eq!(end.result.summary.as_deref(), Some("[secret]"), "{:#?}", end.rows);
        // Claude got them all.
        assert!(end.sent[0].system().contains(&canary.secret));
        let asked = rig.api.requests();
        let called = asked.iter().find(|request| request.path == "/mcp").unwrap();
        assert_eq!(called.header("authorization"), Some(format!("Bearer {header}").as_str()));
        let own = ["work", "claude", "tmp"];
        let files = files(rig.path("").as_std_path(), &own);
        assert!(files.iter().any(|file| file.ends_with("result.json")), "{files:?}");
        files.iter().for_each(|file| check_file(&search, file));
    }
}

/// Path of the config file of the test below.
const CONFIG_WITH_SECRET: &str = "/config/files/text?path=heeler.yaml";

/// Every reply of the API that is not a stream, with the ID of the job and of the session.
fn read_paths(job: &str, session: &str) -> Vec<String> {
    let description: serde_json::Value =
        serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let paths = description["paths"].as_object().unwrap().iter();
    let is_read = |path: &&String| !path.ends_with("/stream");
    let read = paths.filter(|(_, methods)| methods.get("get").is_some()).map(|(path, _)| path);
    let filled = read.filter(is_read).map(|path| {
        let path = path.replace("/jobs/{id}", &format!("/jobs/{job}"));
        let path = path.replace("/sessions/{id}", &format!("/sessions/{session}"));
        let path = path.replace("/config/files/text", CONFIG_WITH_SECRET);
        path.replace("{agent}", "thief").replace("/search", "/search?text=leak")
    });
    // The fleet has no schedule, workflow or question.
    filled.filter(|path| !path.contains('{')).collect()
}

/// Secrets that no list declares: a value of `.env`, the password of an address, and a token.
#[test]
fn no_secret_is_in_a_reply_a_diff_an_export_or_a_search_for_any_scope() {
    let served = Served(Fleet::empty());
    let random = || std::iter::repeat_with(fastrand::alphanumeric).take(24).collect::<String>();
    let (value, password) = (random(), random());
    served.0.write(".env", &format!("SETTING={value}\n"));
    let config = format!(
        "web: {{port: auto}}\nagents:\n  - name: thief\n    runtime: scripted\n    \
         working_directory: work\n    env: {{DB: 'postgres://app:{password}@db.example/x'}}\n    \
         script: [{{run: 'cat ../forms; cp ../forms leaked'}}, {{say: 'a leak'}}]\n"
    );
    served.0.write("heeler.yaml", &config);
    served.0.write("work/first", "x\n");
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
        assert!(git.current_dir(served.0.file("work")).status().unwrap().success());
    }
    let address = served.start();
    let tokens = ["read", "operate", "admin"].map(|scope| {
        let token = served.run(&["token", "create", scope, "--scope", scope]).ok();
        token.trim().to_owned()
    });
    let mut canaries: Vec<Canary> = [value, password].map(Canary::of).into();
    // The daemon has only the hash of a token, so it recognizes a token by its form alone.
    canaries.extend(tokens.iter().map(|token| {
        let (forms, needles) = (vec![token.clone()], vec![token.clone()]);
        Canary { forms, needles, secret: token.clone() }
    }));
    let forms: Vec<&str> =
        canaries.iter().flat_map(|canary| &canary.forms).map(String::as_str).collect();
    served.0.write("forms", &format!("a leak\n{}\n", forms.join("\n")));
    served.run(&["trigger", "thief", "-q"]).ok();
    let search = search(&canaries);
    let check = |what: &str, text: &str| {
        assert!(search.find(text).is_none(), "a secret in {what}: {text}");
    };
    let job = served.0.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    let session = served.0.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let session = session.as_str().unwrap();
    for token in &tokens {
        let get = |path: &str| send(&address, &format!("GET {path}"), &[&bearer(token)], "");
        for path in read_paths(&job, session) {
            let (code, _, reply) = get(&path);
            // A file with a secret is refused as a whole, because it could not be saved without it.
            let expected = if path.ends_with(CONFIG_WITH_SECRET) { 409 } else { 200 };
            assert!(code == expected || code == 403, "{path}: {code} {reply}");
            check(&path, &reply);
        }
        // Neither a secret nor a part of it is found where it was removed.
        for canary in &canaries {
            let (code, _, found) = get(&format!("/api/v1/search?text={}", &canary.secret[..20]));
            let found: serde_json::Value = serde_json::from_str(&found).unwrap();
            assert_eq!((code, found["hits"].as_array().map(Vec::len)), (200, Some(0)), "{found}");
        }
    }
    let (_, _, diff) =
        send(&address, &format!("GET /api/v1/sessions/{session}/diff"), &[&bearer(&tokens[0])], "");
    assert!(diff.contains("a leak") && diff.contains("[secret]"), "it was let out: {diff}");
    for args in [
        &["session", "diff", session][..],
        &["session", "export", session, "-q", "-o", "-"],
        &["session", "show", session],
        &["jobs", "logs", &job],
        &["search", "leak"],
        &["config", "show"],
        &["config", "show", "--json"],
    ] {
        let told = served.run(args);
        check(&args.join(" "), &format!("{}{}", told.stdout, told.stderr));
    }
}
