//! Tests of the requests to an engine, without an engine.

use heeler_config::NetworkMode;
use heeler_model::run::{ContainerVolume, SandboxSpec};
use indexmap::IndexMap;

use super::*;

/// Working directory with a state directory and the file of a fleet in it.
struct BodyFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    spec: ContainerSpec,
    facts: EngineFacts,
    kept_for: Option<AgentSessionId>,
}

impl BodyFixture {
    fn new() -> BodyFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir(root.join(".heeler")).unwrap();
        std::fs::write(root.join("heeler.yaml"), "agents: []").unwrap();
        std::fs::write(root.join(".env"), "TOKEN=x").unwrap();
        let spec = ContainerSpec {
            memory_bytes: 64 << 20,
            cpu_period: Some(1000),
            tmpfs: vec![("/scratch".to_owned(), "size=1m".to_owned())],
            labels: IndexMap::from([("team".to_owned(), "a".to_owned())]),
            ..ContainerSpec::new("/engine.sock".into(), "image".to_owned())
        };
        let facts = EngineFacts {
            kind: EngineKind::Docker,
            version: String::new(),
            is_rootless: false,
            remaps_users: false,
            survives_restart: false,
            limits_memory: true,
            limits_processes: true,
        };
        BodyFixture { _temp: temp, root, spec, facts, kept_for: None }
    }

    fn body(&self) -> Json {
        let sandbox = SandboxSpec {
            hidden: vec![self.root.join(".heeler"), self.root.join(".env"), "/etc/shadow".into()],
            protected: vec![self.root.join("heeler.yaml")],
            ..SandboxSpec::default()
        };
        let mut mounts = SandboxMounts::build(&sandbox, &self.root, &[]).unwrap();
        if self.spec.workspace == MountMode::ReadOnly {
            mounts.close(&self.root, &[]);
        }
        let owner = ContainerOwner {
            run: "01900000-0000-7000-8000-000000000000".parse().unwrap(),
            state_dir: "/state".into(),
            agent: "a".to_owned(),
            kept_for: self.kept_for.clone(),
        };
        let inputs = ContainerInputs {
            owner: &owner,
            facts: &self.facts,
            image: "sha256:00",
            mounts: &mounts,
            sockets: Utf8Path::new("/sockets"),
            empty: &self.root.join("empty"),
            program: Utf8Path::new("/opt/heeler-inside-static"),
            control: "r",
            needs_home: true,
            ids: (7, 8),
        };
        ContainerBody::build(&self.spec, &inputs).unwrap().body
    }

    /// Mount at a path of the container, as `source mode`.
    fn mount(&self, body: &Json, path: &str) -> Option<String> {
        let mounts = body["HostConfig"]["Mounts"].as_array().unwrap();
        let found = mounts.iter().find(|mount| mount["Target"] == path)?;
        let mode = if found["ReadOnly"] == true { "ro" } else { "rw" };
        let source = found["Source"].as_str().unwrap().replace(self.root.as_str(), "ROOT");
        Some(format!("{source} {mode}"))
    }
}

#[test]
fn a_container_has_the_working_directory_and_hides_what_is_not_for_agents() {
    let fixture = BodyFixture::new();
    let body = fixture.body();
    let root = fixture.root.as_str();
    let mount = |path: &str| fixture.mount(&body, path);
    assert_eq!(mount(root).as_deref(), Some("ROOT rw"));
    assert_eq!(mount(&format!("{root}/heeler.yaml")).as_deref(), Some("ROOT/heeler.yaml ro"));
    assert_eq!(mount(&format!("{root}/.env")).as_deref(), Some("ROOT/empty ro"));
    assert_eq!(mount("/.heeler").as_deref(), Some("/sockets ro"));
    assert_eq!(mount("/.heeler-inside").as_deref(), Some("/opt/heeler-inside-static ro"));
    let memory = body["HostConfig"]["Tmpfs"].as_object().unwrap();
    for path in [&format!("{root}/.heeler"), "/tmp", "/run", "/home/agent"] {
        assert!(memory.contains_key(path), "{path}: {memory:?}");
    }
    assert_eq!(memory["/scratch"], "size=1m");
    // Files of the machine are not in there, so nothing needs to cover them.
    assert_eq!(mount("/etc/shadow"), None);
}

#[test]
fn a_container_is_closed_by_default_and_says_whose_it_is() {
    let body = BodyFixture::new().body();
    let host = &body["HostConfig"];
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!(host["NetworkMode"], "none");
    assert_eq!((&host["Memory"], &host["MemorySwap"]), (&json!(64 << 20), &json!(64 << 20)));
    assert_eq!((&host["PidsLimit"], &host["CpuPeriod"]), (&json!(4096), &json!(1000)));
    assert_eq!(host["AutoRemove"], true);
    assert_eq!(body["Entrypoint"], json!(["/.heeler-inside"]));
    assert_eq!(body["Cmd"], json!(["/.heeler/r"]));
    assert_eq!(body["Env"], Json::Null, "no variable is in a file of the engine");
    assert_eq!(body["User"], "7:8");
    assert_eq!(body["Labels"]["heeler.state"], "/state");
    assert_eq!(body["Labels"]["team"], "a");
}

#[test]
fn a_kept_container_belongs_to_its_session_and_tells_its_settings() {
    let mut fixture = BodyFixture::new();
    fixture.kept_for = Some("a-session".parse().unwrap());
    let body = fixture.body();
    assert_eq!(body["HostConfig"]["AutoRemove"], false);
    // Docker with `live-restore` would also remove a running one.
    let mut restarted = BodyFixture::new();
    restarted.facts.survives_restart = true;
    assert_eq!(restarted.body()["HostConfig"]["AutoRemove"], false);
    restarted.facts.kind = EngineKind::Podman;
    assert_eq!(restarted.body()["HostConfig"]["AutoRemove"], true);
    let labels = &body["Labels"];
    assert_eq!(labels["heeler.session"], "a-session");
    assert_eq!(labels["heeler.image"], "sha256:00");
    assert_eq!(labels["heeler.run"], Json::Null, "settling a run must not remove it");
    let settings = |fixture: &BodyFixture| fixture.body()["Labels"]["heeler.settings"].clone();
    assert!(settings(&fixture).as_str().is_some_and(|hash| hash.len() == 64));
    assert_eq!(settings(&fixture), labels["heeler.settings"], "the next run finds the same");
    fixture.spec.memory_bytes += 1;
    assert_ne!(settings(&fixture), labels["heeler.settings"]);
}

#[test]
fn files_belong_to_the_user_of_the_runner_whatever_the_engine() {
    let mut fixture = BodyFixture::new();
    let user = |is_rootless, remaps_users, kind| {
        let facts = EngineFacts { is_rootless, remaps_users, kind, ..fixture.facts.clone() };
        let (user, mode) = container_user(&fixture.spec, &facts, (7, 8));
        format!("{user} {mode}")
    };
    assert_eq!(user(false, false, EngineKind::Docker), "7:8 ");
    assert_eq!(user(false, true, EngineKind::Docker), "7:8 host");
    assert_eq!(user(true, false, EngineKind::Docker), "0:0 ");
    assert_eq!(user(true, false, EngineKind::Podman), "7:8 keep-id");
    fixture.spec.user = Some("5:5".to_owned());
    assert_eq!(fixture.body()["User"], "5:5");
}

#[test]
fn configured_volumes_ports_and_settings_reach_the_engine() {
    let mut fixture = BodyFixture::new();
    fixture.spec.workspace = MountMode::ReadOnly;
    fixture.spec.network = NetworkMode::Bridge;
    fixture.spec.ports = vec![(Some("8080".to_owned()), "80".to_owned())];
    fixture.spec.host_config = Some(json!({"NanoCpus": 5}));
    fixture.spec.volumes = vec![ContainerVolume {
        source: "cache".to_owned(),
        is_named: true,
        target: "/cache".to_owned(),
        mode: MountMode::ReadWrite,
    }];
    let body = fixture.body();
    assert_eq!(fixture.mount(&body, fixture.root.as_str()).as_deref(), Some("ROOT ro"));
    assert_eq!(fixture.mount(&body, "/cache").as_deref(), Some("cache rw"));
    assert_eq!(body["HostConfig"]["NetworkMode"], "bridge");
    assert_eq!(body["HostConfig"]["NanoCpus"], 5);
    let bound = &body["HostConfig"]["PortBindings"]["80/tcp"][0];
    assert_eq!((&bound["HostIp"], &bound["HostPort"]), (&json!("127.0.0.1"), &json!("8080")));
}

#[test]
fn an_empty_setting_replaces_none_of_heeler() {
    let mut fixture = BodyFixture::new();
    let expected = fixture.body();
    fixture.spec.host_config = Some(json!({
        "CapDrop": [], "capdrop": [], "SecurityOpt": null, "IpcMode": "", "AutoRemove": false,
        "Tmpfs": {}, "Mounts": [], "NetworkMode": "", "LogConfig": {}, "Memory": null,
    }));
    assert_eq!(fixture.body(), expected);
}
