//! Moves of sessions between hosts, as the database holds them.

use heeler_model::session_move::SessionMoveState;
use heeler_model::{AgentSessionId, RunId, SessionId};
use uuid::Uuid;

use super::postgres::{ServerPlace, host_place, server_place};
use super::{TempStateDir, now};
use crate::{
    HostFacts, HostLink, HostState, NewSessionMove, SessionMoveReport, SessionMoveRow,
    ShippedBundle, Store, StoreWriteError,
};

const LOG: &str = "agent-sessions/projects/-work/native.jsonl";

/// Two hosts, of which the first leads.
struct MoveHosts {
    server: ServerPlace,
    first: TempStateDir,
    store: Store,
    alpha: HostLink,
    beta: HostLink,
}

impl MoveHosts {
    fn new() -> MoveHosts {
        let server = server_place();
        let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
        let store = first.store();
        let [alpha, beta] = [&first, &second].map(|place| {
            let link = HostLink::connect(&place.dir).unwrap();
            link.register(&HostFacts::default(), HostState::Standby).unwrap();
            link
        });
        MoveHosts { server, first, store, alpha, beta }
    }

    /// Begins a move from alpha to beta.
    fn begin(&self) -> SessionMoveRow {
        let id = Uuid::new_v4();
        self.write(move |tx| {
            let (session, native) = (session(), native());
            tx.begin_session_move(&NewSessionMove {
                session: &session,
                id,
                native: &native,
                source: "alpha",
                target: "beta",
                after_run: RunId::mint(now(), [1; 10]),
                by: "it's me",
            })
        });
        self.row()
    }

    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut crate::StoreTransaction<'_>) -> Result<T, crate::DatabaseError>
        + Send
        + 'static,
    ) -> T {
        let written: Result<T, StoreWriteError<crate::DatabaseError>> = self.store.write(change);
        written.unwrap()
    }

    fn row(&self) -> SessionMoveRow {
        self.first.reader().session_move(&session()).unwrap().unwrap()
    }

    fn end(&self, id: Uuid) {
        self.write(move |tx| tx.end_session_move(id, "cancelled"));
    }

    fn parts(&self) -> String {
        self.server.cluster.query("fleet", "SELECT COUNT(*) FROM session_move_parts").trim().into()
    }

    /// Ships a bundle of two parts.
    fn pack(&self, moved: &SessionMoveRow) -> ShippedBundle {
        let attempt = Uuid::new_v4();
        for (number, bytes) in [b"one ".as_slice(), b"two"].into_iter().enumerate() {
            assert!(self.alpha.send_move_part(moved, attempt, number as i64, bytes).unwrap());
        }
        ShippedBundle { attempt, parts: 2, native_bytes: Some(5) }
    }
}

fn session() -> SessionId {
    "sess-0000abcd".parse().unwrap()
}

fn native() -> AgentSessionId {
    Uuid::from_u128(7).to_string().parse().unwrap()
}

#[test]
fn a_session_moves_in_steps_of_which_each_counts_once() {
    let hosts = MoveHosts::new();
    let moved = hosts.begin();
    assert_eq!((moved.state, moved.host()), (SessionMoveState::Packing, "alpha"));
    assert!(moved.seconds_left > 500 && !moved.is_overdue, "{moved:?}");
    // A second one does not replace it.
    assert_eq!(hosts.begin().id, moved.id);
    let pulse = |link: &HostLink| link.beat(HostState::Standby, None, now()).unwrap();
    assert_eq!([pulse(&hosts.alpha).moves, pulse(&hosts.beta).moves], [1, 0]);

    // An interrupted attempt leaves nothing behind.
    hosts.pack(&moved);
    let bundle = hosts.pack(&moved);
    assert_eq!((hosts.row().bytes, hosts.parts()), (7, "2".to_owned()));
    let not_its_part = hosts.beta.send_move_part(&moved, Uuid::new_v4(), 5, b"x").unwrap();
    assert!(!not_its_part && !hosts.beta.finish_packing(&moved, &bundle).unwrap());
    assert!(hosts.alpha.finish_packing(&moved, &bundle).unwrap());
    assert!(!hosts.alpha.finish_packing(&moved, &bundle).unwrap());
    assert!(!hosts.alpha.send_move_part(&moved, bundle.attempt, 2, b"late").unwrap());
    assert_eq!([pulse(&hosts.alpha).moves, pulse(&hosts.beta).moves], [0, 1]);

    let placing = hosts.beta.own_moves().unwrap().pop().unwrap();
    assert_eq!((placing.parts, placing.native_bytes), (2, Some(5)));
    let part = |number| hosts.beta.move_part(bundle.attempt, number).unwrap();
    assert_eq!([part(0), part(1)], [Some(b"one ".to_vec()), Some(b"two".to_vec())]);
    assert_eq!(part(2), None);
    let report = SessionMoveReport::default();
    assert!(!hosts.alpha.finish_placing(&placing, &report).unwrap());
    assert!(hosts.beta.finish_placing(&placing, &report).unwrap());
    assert_eq!(pulse(&hosts.alpha).due_moves, 1);

    // The leader records it once, and the target ships the transcript from then on.
    hosts.server.cluster.query(
        "fleet",
        &format!("INSERT INTO shared_files (path, host, length) VALUES ('{LOG}', 'alpha', 9)"),
    );
    let placed = hosts.row();
    assert_eq!((placed.state, placed.host()), (SessionMoveState::Placed, "alpha"));
    for expected in [true, false] {
        let placed = placed.clone();
        let is_done = hosts.write(move |tx| tx.finish_session_move(&placed, LOG));
        assert_eq!(is_done, expected);
    }
    let done = hosts.row();
    assert_eq!((done.state, done.host()), (SessionMoveState::Done, "beta"));
    assert_eq!(hosts.alpha.file_owner(LOG).unwrap().unwrap().host, "beta");
    assert_eq!((hosts.parts(), pulse(&hosts.alpha).due_moves), ("0".to_owned(), 0));
    // The next move begins anew.
    let next = hosts.begin();
    assert!(next.id != moved.id && next.state == SessionMoveState::Packing, "{next:?}");
}

#[test]
fn a_move_that_is_over_takes_no_further_step() {
    let hosts = MoveHosts::new();
    let moved = hosts.begin();
    let bundle = hosts.pack(&moved);
    hosts.end(moved.id);
    assert_eq!(hosts.row().reason.as_deref(), Some("cancelled"));
    assert!(!hosts.alpha.send_move_part(&moved, bundle.attempt, 2, b"late").unwrap());
    assert!(!hosts.alpha.finish_packing(&moved, &bundle).unwrap());
    hosts.alpha.refuse_move(&moved, "too late").unwrap();
    let ended = hosts.row();
    assert_eq!((ended.state, ended.host()), (SessionMoveState::Ended, "alpha"));
    assert_eq!((ended.reason.as_deref(), hosts.parts()), (Some("cancelled"), "0".to_owned()));

    // A report that crosses the end.
    let moved = hosts.begin();
    let bundle = hosts.pack(&moved);
    hosts.alpha.finish_packing(&moved, &bundle).unwrap();
    let placing = hosts.beta.own_moves().unwrap().pop().unwrap();
    // Another host cannot end it, its target can.
    hosts.alpha.refuse_move(&placing, "not mine").unwrap();
    assert_eq!(hosts.row().state, SessionMoveState::Placing);
    hosts.beta.refuse_move(&placing, "it's full").unwrap();
    assert_eq!(hosts.row().reason.as_deref(), Some("it's full"));
    assert!(!hosts.beta.finish_placing(&placing, &SessionMoveReport::default()).unwrap());
    let is_done = hosts.write(move |tx| tx.finish_session_move(&placing, LOG));
    assert!(!is_done);
    assert_eq!(hosts.row().host(), "alpha");
}

#[test]
fn a_move_beyond_its_time_limit_is_one_for_the_leader() {
    let hosts = MoveHosts::new();
    let moved = hosts.begin();
    assert!(hosts.first.reader().due_moves().unwrap().is_empty());
    hosts.server.cluster.query("fleet", "UPDATE session_moves SET until = now()");
    let due = hosts.first.reader().due_moves().unwrap();
    assert!(due.len() == 1 && due[0].id == moved.id && due[0].is_overdue, "{due:?}");
    let of = |host: &str| hosts.first.reader().moves_of_host(host).unwrap().len();
    assert_eq!([of("alpha"), of("beta"), of("gamma")], [1, 1, 0]);
    hosts.end(moved.id);
    assert!(hosts.first.reader().due_moves().unwrap().is_empty() && of("alpha") == 0);
}
