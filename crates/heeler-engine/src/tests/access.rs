//! Users, tokens and logins in a daemon.

use heeler_model::{AccessScope, AccessToken, BrowserLogin, RunId, TokenId, secret_hash};
use heeler_store::{DatabaseError, PushBrowser, StoreWriteError};
use jiff::{SignedDuration, Timestamp};

use super::EngineFixture;
use super::daemon::RunningDaemon;
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, DaemonMode, StopMode,
};
use crate::{
    AccessOperation, Caller, LOGIN_LIFETIME, LOGINS_MAX, LoginMethod, SessionOperation, TOKENS_MAX,
};

const CONFIG: &str = "agents:\n  - {name: coder, runtime: scripted, script: [{say: hi}]}\n";

fn ask(running: &RunningDaemon, order: AccessOperation) -> Result<String, DaemonCommandError> {
    match running.handle.send_and_wait(DaemonCommand::Access { order, by: "me".to_owned() })? {
        CommandReply::Done { message } => Ok(message),
        other => panic!("{other:?}"),
    }
}

fn create(name: &str, secret: &str, expires_at: Option<Timestamp>) -> AccessOperation {
    let (name, hash) = (name.parse().unwrap(), secret_hash(secret));
    AccessOperation::CreateToken { name, scope: AccessScope::Read, hash, expires_at }
}

fn log_in(cookie: &str, who: LoginMethod) -> AccessOperation {
    AccessOperation::Login { hash: secret_hash(cookie), who }
}

fn by_password(hash: &str) -> LoginMethod {
    LoginMethod::Password { name: "ann".parse().unwrap(), hash: hash.to_owned() }
}

fn set(scope: Option<AccessScope>, hash: &str) -> AccessOperation {
    AccessOperation::SetPassword { name: "ann".parse().unwrap(), scope, hash: hash.to_owned() }
}

#[track_caller]
fn refused(running: &RunningDaemon, order: AccessOperation) -> DaemonCommandErrorKind {
    ask(running, order).unwrap_err().kind
}

#[test]
fn a_token_counts_until_it_is_revoked_and_its_name_is_its_own() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    ask(&running, create("ci", "one", None)).unwrap();
    assert_eq!(refused(&running, create("ci", "two", None)), DaemonCommandErrorKind::Busy);
    assert_eq!(
        refused(&running, create("api-token", "two", None)),
        DaemonCommandErrorKind::NotAllowed
    );
    let past = Some(Timestamp::UNIX_EPOCH);
    assert_eq!(refused(&running, create("old", "two", past)), DaemonCommandErrorKind::Usage);
    let counts = |secret: &str| {
        let token = place.reader().token_of_hash(&secret_hash(secret)).unwrap();
        token.is_some_and(|token| token.is_valid((place.fleet.now)()))
    };
    assert_eq!((counts("one"), counts("two")), (true, false));
    let revoke = |token: &str| AccessOperation::RevokeToken { token: token.to_owned() };
    ask(&running, revoke("ci")).unwrap();
    assert!(!counts("one"));
    assert_eq!(refused(&running, revoke("ci")), DaemonCommandErrorKind::NotFound);
    // The name is free again, and the ID stays the same.
    ask(&running, create("ci", "two", None)).unwrap();
    let id = TokenId::from_hash(&secret_hash("one"));
    assert!(ask(&running, revoke(id.as_str())).unwrap().contains("already"));
    assert!(counts("two"));
    let mut broken = create("x", "three", None);
    if let AccessOperation::CreateToken { hash, .. } = &mut broken {
        *hash = "three".to_owned();
    }
    assert_eq!(refused(&running, broken), DaemonCommandErrorKind::Usage);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn a_login_counts_if_the_password_is_still_the_same_and_ends_with_it() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    let is_in = |cookie: &str| place.reader().login(&secret_hash(cookie)).unwrap();
    assert_eq!(
        refused(&running, log_in("a", by_password("first"))),
        DaemonCommandErrorKind::NotAllowed
    );
    ask(&running, set(None, "first")).unwrap();
    ask(&running, log_in("a", by_password("first"))).unwrap();
    let login = is_in("a").unwrap();
    assert_eq!((login.caller.as_str(), login.scope), ("ann", AccessScope::Admin));
    assert_eq!(login.expires_at.duration_since(login.created_at), LOGIN_LIFETIME);
    ask(&running, set(Some(AccessScope::Read), "second")).unwrap();
    assert_eq!(is_in("a"), None);
    // A login that was just checking the first password comes too late.
    assert_eq!(
        refused(&running, log_in("b", by_password("first"))),
        DaemonCommandErrorKind::NotAllowed
    );
    ask(&running, log_in("b", by_password("second"))).unwrap();
    ask(&running, set(None, "third")).unwrap();
    ask(&running, log_in("c", by_password("third"))).unwrap();
    assert_eq!(is_in("c").unwrap().scope, AccessScope::Read, "as before");
    let link = LoginMethod::Link { name: "bob".to_owned(), scope: AccessScope::Operate };
    ask(&running, log_in("d", link)).unwrap();
    ask(&running, AccessOperation::RemovePassword { name: "ann".parse().unwrap() }).unwrap();
    assert_eq!((is_in("c"), is_in("d").is_some()), (None, true));
    ask(&running, AccessOperation::Logout { hash: secret_hash("d") }).unwrap();
    assert_eq!(is_in("d"), None);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn there_are_so_many_tokens_and_logins_and_not_more() {
    let place = EngineFixture::new("success");
    let now = (place.fleet.now)();
    let filled: Result<(), StoreWriteError<DatabaseError>> = place.store().write(move |tx| {
        for number in 0..TOKENS_MAX {
            let hash = secret_hash(&number.to_string());
            let token = AccessToken {
                id: format!("tok-{number}").parse().unwrap(),
                name: format!("t{number}").parse().unwrap(),
                scope: AccessScope::Read,
                created_at: now,
                created_by: "me".to_owned(),
                expires_at: None,
                used_at: None,
                revoked_at: None,
            };
            tx.insert_token(&token, &hash)?;
        }
        for number in 0..LOGINS_MAX {
            let (who, scope) = ("ann".to_owned(), AccessScope::Read);
            // The first has expired when the next one is created.
            let lasts = if number == 0 { SignedDuration::ZERO } else { LOGIN_LIFETIME };
            let login = BrowserLogin {
                caller: who,
                scope,
                user: None,
                created_at: now,
                expires_at: now + lasts,
            };
            let earlier = now - SignedDuration::from_hours(1);
            tx.insert_login(
                &BrowserLogin { created_at: earlier, ..login },
                &secret_hash(&number.to_string()),
            )?;
        }
        Ok(())
    });
    filled.unwrap();
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    assert_eq!(refused(&running, create("more", "more", None)), DaemonCommandErrorKind::Busy);
    ask(&running, AccessOperation::RevokeToken { token: "t7".to_owned() }).unwrap();
    ask(&running, create("more", "more", None)).unwrap();
    let link = || LoginMethod::Link { name: "bob".to_owned(), scope: AccessScope::Read };
    ask(&running, log_in("a", link())).unwrap();
    assert_eq!(refused(&running, log_in("b", link())), DaemonCommandErrorKind::NotAllowed);
    assert_eq!(place.reader().count_logins().unwrap(), LOGINS_MAX);
    ask(&running, AccessOperation::LogoutAll).unwrap();
    assert_eq!(place.reader().count_logins().unwrap(), 0);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn neither_an_agent_nor_somebody_unknown_changes_who_may_do_what() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    for by in [Caller::Unknown, Caller::Run(RunId::mint(Timestamp::UNIX_EPOCH, [1; 10]))] {
        let order = create("mine", "mine", None);
        let asked = running
            .handle
            .with_caller(by)
            .send_and_wait(DaemonCommand::Access { order, by: "me".to_owned() });
        assert_eq!(asked.unwrap_err().kind, DaemonCommandErrorKind::NotAllowed);
    }
    assert_eq!(place.reader().tokens().unwrap(), []);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn only_a_person_moves_a_session_to_another_host() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    let run = Caller::Run(RunId::mint(Timestamp::UNIX_EPOCH, [1; 10]));
    for (by, expected) in [
        (Caller::Unknown, DaemonCommandErrorKind::NotAllowed),
        (run, DaemonCommandErrorKind::NotAllowed),
        (Caller::Person, DaemonCommandErrorKind::NotFound),
    ] {
        let session = "sess-0000abcd".parse().unwrap();
        let order = SessionOperation::Move { session, to: "beta".to_owned() };
        let command = DaemonCommand::Session { order, by: "me".to_owned() };
        let asked = running.handle.with_caller(by).send_and_wait(command);
        assert_eq!(asked.unwrap_err().kind, expected, "{by:?}");
    }
    running.stop(StopMode::KeepJobs);
}

#[test]
fn what_is_ordered_shows_no_hash() {
    let orders = [create("ci", "s", None), set(None, "h"), log_in("c", by_password("h"))];
    let shown = format!("{orders:?}");
    assert_eq!(shown, "[CreateToken(ci, read), SetPassword(ann, None), Login(ann)]");
}

#[test]
fn notices_of_browsers_end_with_the_password_of_their_owner_and_with_all_logins() {
    let place = EngineFixture::new("success");
    let put = |owner: &str, endpoint: &str| {
        let browser = PushBrowser {
            id: PushBrowser::id_of(endpoint),
            channel: "browsers".to_owned(),
            owner: owner.to_owned(),
            label: "phone".to_owned(),
            added_at: Timestamp::UNIX_EPOCH,
            endpoint: endpoint.to_owned(),
            public_key: "key".to_owned(),
            auth_secret: "secret".to_owned(),
        };
        let put: Result<_, StoreWriteError<DatabaseError>> =
            place.store().write(move |tx| tx.put_push_browser(&browser));
        put.unwrap();
    };
    put("ann", "https://push.example/1");
    put("ann", "https://push.example/2");
    put("bob", "https://push.example/3");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    let owners = || -> Vec<String> {
        let browsers = place.reader().push_browsers().unwrap();
        browsers.into_iter().map(|browser| browser.owner).collect()
    };
    assert_eq!(owners(), ["ann", "ann", "bob"]);
    ask(&running, set(None, "first")).unwrap();
    assert_eq!(owners(), ["bob"]);
    ask(&running, AccessOperation::LogoutAll).unwrap();
    assert_eq!(owners(), [""; 0]);
    running.stop(StopMode::KeepJobs);
}
