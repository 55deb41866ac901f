//! Random logs: several runs, kills, forks, sub-agents, failures, garbage; and the agent's own file
//! that goes with each.

use fastrand::Rng;
use heeler_model::recorder::{MessageCounter, PRIOR_COUNTS_KEY};
use serde_json::{Value as Json, json};
use uuid::Uuid;

/// The two files of a session.
pub(super) struct RandomSessionFiles {
    pub(super) log: Vec<u8>,
    pub(super) own: Vec<u8>,
    rng: Rng,
    count: MessageCounter,
    /// The last entry of each.
    last: Option<Uuid>,
    own_last: Option<Uuid>,
    own_entries: Vec<Uuid>,
}

impl RandomSessionFiles {
    pub(super) fn play(seed: u64) -> RandomSessionFiles {
        let mut scene = RandomSessionFiles {
            log: Vec::new(),
            own: Vec::new(),
            rng: Rng::with_seed(seed),
            count: MessageCounter::default(),
            last: None,
            own_last: None,
            own_entries: Vec::new(),
        };
        if scene.rng.u8(..) < 60 {
            // A file that another program started.
            (0..scene.rng.usize(..4)).for_each(|_| scene.turn());
        }
        for _ in 0..scene.rng.usize(..6) {
            scene.begin();
            (0..scene.rng.usize(..4)).for_each(|_| scene.turn());
        }
        if scene.rng.bool() {
            scene.log.extend(b"{\"type\":\"user\",\"uuid\":\"torn");
        }
        scene
    }

    /// Returns which page to ask for.
    pub(super) fn page(&mut self, total: u64) -> (Option<u64>, usize) {
        let before = self.rng.bool().then(|| self.rng.u64(..total + 3));
        (before, self.rng.usize(..12))
    }

    fn id(&mut self) -> Uuid {
        Uuid::from_u128(self.rng.u128(..))
    }

    fn row(&mut self, row: &Json) {
        self.count.count_row(row);
        self.log.extend(format!("{row}\n").bytes());
        match self.rng.u8(..30) {
            0 => self.log.extend(b"what is this\n"),
            1 => self.log.extend(b"\n"),
            2 => self.log.extend(b"[1,2]\n"),
            3 => self.log.extend(b"{\"type\":\"brand_new\"}\n"),
            _ => {}
        }
    }

    /// Begins a segment: of the same session, or of a fork with all earlier rows.
    fn begin(&mut self) {
        let mut row = json!({"type": "system", "subtype": "session", "uuid": self.id(),
            PRIOR_COUNTS_KEY: {"messages": self.count.messages(), "tokens": 0, "last": self.last}});
        if self.rng.u8(..4) == 0 {
            row["forkedFrom"] = json!({"sessionId": "s", "messageUuid": self.last});
        }
        self.row(&row);
        // The next segment counts from there.
        self.count = MessageCounter::starting_at(self.count.messages());
        if self.rng.u8(..5) == 0 && !self.own_entries.is_empty() {
            let at = self.rng.usize(..self.own_entries.len());
            self.own_last = Some(self.own_entries[at]);
        }
    }

    fn turn(&mut self) {
        let (uuid, own_uuid) = (self.id(), self.id());
        let is_kept = self.rng.u8(..8) > 0;
        let keeps_id = self.rng.bool();
        self.say("user", uuid, json!({"role": "user", "content": "Go."}));
        if is_kept {
            self.keep("user", if keeps_id { uuid } else { own_uuid });
        }
        for _ in 0..self.rng.usize(..4) {
            self.message(is_kept);
        }
        match self.rng.u8(..6) {
            // Killed.
            0 => {}
            1 => {
                let row = json!({"type": "assistant", "uuid": self.id(), "isApiErrorMessage": true,
                    "message": {"role": "assistant", "content": [{"type": "text", "text": "no"}]}});
                self.row(&row);
            }
            2 => {
                self.snapshot();
                self.row(&json!({"type": "result", "subtype": "success"}));
            }
            3 => {
                self.row(&json!({"type": "result", "subtype": "success"}));
                self.snapshot();
            }
            _ => self.row(&json!({"type": "result", "is_error": true})),
        }
    }

    fn snapshot(&mut self) {
        let commit = format!("{:040x}", self.rng.u128(..));
        self.row(&json!({"type": "system", "subtype": "snapshot", "messageUuid": self.last,
            "snapshot": {"commit": commit, "repository": "r", "top": "/w"}}));
    }

    /// A message of the agent: one or more rows, maybe a tool, maybe a sub-agent's words.
    fn message(&mut self, is_kept: bool) {
        let id = self.rng.bool().then(|| format!("msg_{}", self.rng.u32(..)));
        let rows = if id.is_some() { self.rng.usize(1..4) } else { 1 };
        let call = self.rng.bool().then(|| format!("toolu_{}", self.rng.u32(..)));
        for row in 0..rows {
            let uuid = self.id();
            let block = match &call {
                Some(call) if row + 1 == rows => {
                    json!({"type": "tool_use", "id": call, "name": "Bash", "input": {"a": 1}})
                }
                _ => json!({"type": "text", "text": format!("\"uuid\":\"{uuid}\"")}),
            };
            let mut message = json!({"role": "assistant", "content": [block]});
            if let Some(id) = &id {
                message["id"] = id.as_str().into();
            }
            self.say("assistant", uuid, message);
            if is_kept {
                self.keep("assistant", uuid);
            }
        }
        if self.rng.u8(..3) == 0 {
            self.sub_agent();
        }
        if let Some(call) = call.filter(|_| self.rng.u8(..6) > 0) {
            let uuid = self.id();
            let block = json!({"type": "tool_result", "tool_use_id": call, "content": "gave"});
            self.say("user", uuid, json!({"role": "user", "content": [block]}));
            if is_kept {
                self.keep("user", uuid);
            }
        }
    }

    fn sub_agent(&mut self) {
        for kind in ["user", "assistant", "result"] {
            let row = json!({"type": kind, "uuid": self.id(), "isSidechain": true,
                "parent_tool_use_id": "x", "message": {"role": kind, "content": "I help."}});
            self.row(&row);
        }
    }

    fn say(&mut self, kind: &str, uuid: Uuid, message: Json) {
        let row = json!({"type": kind, "uuid": uuid, "parentUuid": self.last, "isSidechain": false,
            "message": message});
        self.row(&row);
        self.last = Some(uuid);
    }

    /// Adds an entry to the agent's own file.
    fn keep(&mut self, kind: &str, uuid: Uuid) {
        let entry = json!({"parentUuid": self.own_last, "isSidechain": false, "type": kind,
            "message": {}, "uuid": uuid});
        self.own.extend(format!("{entry}\n").bytes());
        match self.rng.u8(..12) {
            0 => {
                let text = json!({"type": "api-request-blob", "uuids": [self.last, uuid]});
                self.own.extend(format!("{text}\n").bytes());
            }
            1 => {
                let aside = json!({"type": "user", "uuid": self.id(), "parentUuid": uuid,
                    "isSidechain": true});
                self.own.extend(format!("{aside}\n").bytes());
            }
            _ => {}
        }
        self.own_last = Some(uuid);
        self.own_entries.push(uuid);
    }
}
