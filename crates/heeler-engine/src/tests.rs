//! Jobs from request to committed result, with a shell script as runner, interrupted at every step.

mod access;
mod cancels;
mod clock;
mod commit_failures;
mod daemon;
mod executor_limits;
mod full_disk;
mod jobs;
mod recovery;
mod run_without_daemon;
mod sessions;
mod webhooks;

use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{RuntimeType, SessionRules};
use heeler_model::run::{
    AgentLaunchSpec, PROTOCOL, QuestionPolicy, RunAuthority, RunLimits, RuntimeLaunchSpec,
};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{
    AgentSessionId, ApprovalMode, Job, JobId, Session, SessionMode, SessionStatus, TriggerType,
};
use heeler_store::{StateDir, Store, StoreReader};
use indexmap::IndexMap;
use jiff::Timestamp;

use self::run_without_daemon::JobNotice;
use crate::{CommittedRun, EngineContext, ResolvedJobRequest, RunStartError};

/// A secret that must not be written anywhere.
const SECRET: &str = "hunter2-hunter2";

/// A runner that follows the file `behave` next to it.
const RUNNER: &str = r#"#!/bin/sh
here=$(dirname "$0")
settle=no
shift
if [ "$1" = --settle ]; then settle=yes; shift; fi
if [ "$1" = --end ]; then echo "$2" >> "$here/ended"; exit 0; fi
dir=$1
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",*$/\1/p" "$dir/spec.json" | head -1; }
result() {
  printf '{"protocol":1,"run":"%s","job":"%s","end":"%s","exit_reason":"%s","stop_reason":null,"summary":"did it","error":%s,"cost":{"usd":0.25,"usage":{"num_turns":2,"output_tokens":7}},"session":%s,"started_at":"2026-11-15T09:00:00Z","finished_at":"2026-11-15T09:00:02Z","exit_code":0,"settled":null}' \
    "$(field run)" "$(field job)" "$1" "$2" "$3" "$4" > "$dir/.result"
  mv "$dir/.result" "$dir/result.json"
}
error() { printf '{"class":"%s","message":"it said hunter2-hunter2","recoverable":false,"retry_after_ms":null,"resets_at":null,"messages_received":3,"cure":"none"}' "$1"; }
session() { printf '{"id":"%s","log":"%s","messages":4,"tokens":100,"resumable":true}' "${1:-$(field id)}" "$dir/log.jsonl"; }
if [ $settle = yes ]; then
  if [ -e "$dir/settle-with" ]; then exit "$(cat "$dir/settle-with")"; fi
  if [ -e "$here/settle-once-with" ]; then
    code=$(cat "$here/settle-once-with"); rm "$here/settle-once-with"; exit "$code"
  fi
  if [ -e "$dir/started.json" ]; then result interrupted error "$(error interrupted)" "$(session)"
  else result never_started error null null; fi
  exit 0
fi
cat > "$here/brief.json"
printf '%s\n' "$*" > "$here/argv"
env > "$here/env"
case $(cat "$here/behave") in
  success) result finished success null "$(session)" ;;
  'in '*) result finished success null "$(session "$(sed 's/^in //' "$here/behave")")" ;;
  failure) result finished error "$(error agent_failed)" "$(session)" ;;
  cancelled) result finished cancelled null "$(session)" ;;
  hopeless) result finished error "$(error agent_failed)" "$(session | sed 's/true/false/')" ;;
  lost) result interrupted error "$(error interrupted)" null ;;
  busy) result session_busy error "$(error session_busy)" null ;;
  die) exit 9 ;;
  die-once) echo success > "$here/behave"; exit 9 ;;
  die-when-told)
    echo '{}' > "$dir/started.json"
    until [ -e "$here/go" ]; do sleep 0.01; done
    rm "$dir/started.json"; exit 9 ;;
  die-late) echo '{}' > "$dir/started.json"; exit 9 ;;
esac
"#;

/// A fleet in a temporary directory, with the fake runner.
pub(crate) struct EngineFixture {
    _temp: tempfile::TempDir,
    pub(crate) root: Utf8PathBuf,
    pub(crate) fleet: EngineContext,
}

#[expect(clippy::disallowed_methods, reason = "a test's clock")]
fn clock() -> Timestamp {
    Timestamp::now()
}

impl EngineFixture {
    pub(crate) fn new(behave: &str) -> EngineFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        let program = root.join("runner");
        std::fs::write(&program, RUNNER).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        let place = EngineFixture {
            _temp: temp,
            fleet: EngineContext {
                dir,
                program,
                env: vec![path],
                now: clock,
                hook_grants: crate::HookGrants::default(),
                lead: heeler_store::LeadLease::default(),
                host_lease: heeler_store::HostLease::default(),
            },
            root,
        };
        place.behave(behave);
        drop(place.store());
        place
    }

    pub(crate) fn behave(&self, how: &str) {
        std::fs::write(self.root.join("behave"), how).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.root.join(name)).unwrap()
    }

    pub(crate) fn store(&self) -> Store {
        self.fleet.open_writer("test", Duration::from_secs(5)).unwrap()
    }

    pub(crate) fn reader(&self) -> StoreReader {
        StoreReader::open(&self.fleet.dir).unwrap()
    }

    pub(crate) fn job(&self, id: &JobId) -> Job {
        self.reader().job(id).unwrap().unwrap()
    }

    pub(crate) fn session_of(&self, id: &JobId) -> Session {
        let session = self.job(id).head.session_id.unwrap();
        self.reader().session_by_agent_id(&session).unwrap().unwrap()
    }

    pub(crate) fn conduct(
        &self,
        request: &ResolvedJobRequest,
    ) -> (Vec<JobNotice>, Result<CommittedRun, RunStartError>) {
        let mut told = Vec::new();
        let done = run_without_daemon::conduct(&self.fleet, request, &mut |notice| {
            told.push(notice.clone());
        });
        (told, done)
    }

    #[track_caller]
    pub(crate) fn conducted(&self, request: &ResolvedJobRequest) -> CommittedRun {
        self.conduct(request).1.unwrap()
    }

    pub(crate) fn request(&self) -> ResolvedJobRequest {
        ResolvedJobRequest {
            note: None,
            take_in: false,
            agent: "coder".parse().unwrap(),
            fleet_agents: vec!["coder".parse().unwrap(), "writer".parse().unwrap()],
            trigger: TriggerType::Manual,
            schedule: None,
            runtime: RuntimeType::Scripted,
            working_directory: self.root.clone(),
            host_choice: None,
            is_assigned: false,
            host: None,
            output_file: false,
            home: self.root.join("home"),
            sockets: self.root.clone(),
            session: SessionChoice::Usual,
            is_phase_command: false,
            rules: SessionRules {
                mode: SessionMode::FreshPerJob,
                expires_after: None,
                idle_timeout: None,
                auto_resume_within: None,
                max_context_tokens: None,
                context_window: None,
                snapshots: true,
                keep_agent_for: None,
            },
            forked_from: None,
            channel: None,
            has_transcript: false,
            approvals: ApprovalMode::Autonomous,
            max_concurrent: NonZeroU32::MIN,
            fleet_max_concurrent: None,
            limits: RunLimits::default(),
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            keep_output: false,
            skill_files: Vec::new(),
            keep_agent: None,
            github_token: Vec::new(),
            brief: AgentLaunchSpec {
                protocol: PROTOCOL,
                prompt: format!("use {SECRET}"),
                env: IndexMap::from([("API_TOKEN".to_owned(), SECRET.to_owned())]),
                secrets: vec![SECRET.to_owned()],
                shared_secrets: Vec::new(),
                work: RuntimeLaunchSpec::Script { steps: Vec::new() },
                send_files_to: None,
                authority: RunAuthority::default(),
                may_start_jobs: false,
                sandbox: None,
            },
        }
    }

    /// Creates a native session that Heeler does not know.
    pub(crate) fn agent_has(&self, session: &str) -> AgentSessionId {
        let folder = self.root.join("home/scripted/projects/-elsewhere");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{session}.jsonl")), "{}\n").unwrap();
        session.parse().unwrap()
    }

    /// Stores a session of the agent as an import leaves it: with all counts 0.
    pub(crate) fn import(&self, channel: Option<&str>) -> Session {
        let session = Session {
            agent_session_id: Some("22222222-imported".parse().unwrap()),
            mode: SessionMode::Persistent,
            status: SessionStatus::Paused,
            channel_id: channel.map(str::to_owned),
            created_at: clock() - jiff::SignedDuration::from_secs(9),
            last_active_at: clock(),
            origin: Some("herdctl".to_owned()),
            ..Session::new(heeler_model::SessionId::mint(7), "coder", clock())
        };
        let imported = session.clone();
        self.store()
            .write::<(), heeler_store::DatabaseError, _>(move |tx| {
                tx.put_session(&session)?;
                match session.channel_id {
                    Some(_) => Ok(()),
                    None => tx.set_agent_session(&session.agent, Some(&session.id)),
                }
            })
            .unwrap();
        imported
    }

    pub(crate) fn persistent(&self) -> ResolvedJobRequest {
        let mut request = self.request();
        request.rules.mode = SessionMode::Persistent;
        request.rules.expires_after = Some("1m".parse().unwrap());
        request
    }

    /// Every file below the folder, with its bytes.
    pub(crate) fn files(&self, below: &Utf8Path) -> Vec<(Utf8PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for entry in below.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            match path.symlink_metadata().unwrap().file_type() {
                kind if kind.is_dir() => found.extend(self.files(&path)),
                kind if kind.is_symlink() => {}
                _ => found.push((path.clone(), std::fs::read(&path).unwrap())),
            }
        }
        found
    }
}
