//! Who may do what, as a daemon keeps it.

use heeler_model::{Login, RunId, Scope, Token, TokenId, secret_hash};
use heeler_store::{DbError, WriteError};
use jiff::{SignedDuration, Timestamp};

use super::Place;
use super::daemon::Running;
use crate::command::{Answer, Command, DaemonMode, Refused, RefusedKind, Stopping};
use crate::{AccessOrder, LOGIN_LASTS, LOGINS_MAX, LoginBy, Origin, TOKENS_MAX};

const CONFIG: &str = "agents:\n  - {name: coder, runtime: scripted, script: [{say: hi}]}\n";

fn ask(running: &Running, order: AccessOrder) -> Result<String, Refused> {
    match running.handle.ask(Command::Access { order, by: "me".to_owned() })? {
        Answer::Done { message } => Ok(message),
        other => panic!("{other:?}"),
    }
}

fn create(name: &str, secret: &str, expires_at: Option<Timestamp>) -> AccessOrder {
    let (name, hash) = (name.parse().unwrap(), secret_hash(secret));
    AccessOrder::CreateToken { name, scope: Scope::Read, hash, expires_at }
}

fn log_in(cookie: &str, who: LoginBy) -> AccessOrder {
    AccessOrder::Login { hash: secret_hash(cookie), who }
}

fn by_password(hash: &str) -> LoginBy {
    LoginBy::Password { name: "ann".parse().unwrap(), hash: hash.to_owned() }
}

fn set(scope: Option<Scope>, hash: &str) -> AccessOrder {
    AccessOrder::SetPassword { name: "ann".parse().unwrap(), scope, hash: hash.to_owned() }
}

#[track_caller]
fn refused(running: &Running, order: AccessOrder) -> RefusedKind {
    ask(running, order).unwrap_err().kind
}

#[test]
fn a_token_counts_until_it_is_revoked_and_its_name_is_its_own() {
    let place = Place::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    ask(&running, create("ci", "one", None)).unwrap();
    assert_eq!(refused(&running, create("ci", "two", None)), RefusedKind::Busy);
    assert_eq!(refused(&running, create("api-token", "two", None)), RefusedKind::NotAllowed);
    let past = Some(Timestamp::UNIX_EPOCH);
    assert_eq!(refused(&running, create("old", "two", past)), RefusedKind::Usage);
    let counts = |secret: &str| {
        let token = place.reader().token_of_hash(&secret_hash(secret)).unwrap();
        token.is_some_and(|token| token.counts((place.fleet.now)()))
    };
    assert_eq!((counts("one"), counts("two")), (true, false));
    let revoke = |token: &str| AccessOrder::RevokeToken { token: token.to_owned() };
    ask(&running, revoke("ci")).unwrap();
    assert!(!counts("one"));
    assert_eq!(refused(&running, revoke("ci")), RefusedKind::NotFound);
    // A name is free again, and an id stays what it was.
    ask(&running, create("ci", "two", None)).unwrap();
    let id = TokenId::of_hash(&secret_hash("one"));
    assert!(ask(&running, revoke(id.as_str())).unwrap().contains("already"));
    assert!(counts("two"));
    let mut broken = create("x", "three", None);
    if let AccessOrder::CreateToken { hash, .. } = &mut broken {
        *hash = "three".to_owned();
    }
    assert_eq!(refused(&running, broken), RefusedKind::Usage);
    running.stop(Stopping::KeepJobs);
}

#[test]
fn a_login_counts_if_the_password_is_still_the_same_and_ends_with_it() {
    let place = Place::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    let is_in = |cookie: &str| place.reader().login(&secret_hash(cookie)).unwrap();
    assert_eq!(refused(&running, log_in("a", by_password("first"))), RefusedKind::NotAllowed);
    ask(&running, set(None, "first")).unwrap();
    ask(&running, log_in("a", by_password("first"))).unwrap();
    let login = is_in("a").unwrap();
    assert_eq!((login.who.as_str(), login.scope), ("ann", Scope::Admin));
    assert_eq!(login.expires_at.duration_since(login.created_at), LOGIN_LASTS);
    ask(&running, set(Some(Scope::Read), "second")).unwrap();
    assert_eq!(is_in("a"), None);
    // Whoever was just checking the first one comes too late.
    assert_eq!(refused(&running, log_in("b", by_password("first"))), RefusedKind::NotAllowed);
    ask(&running, log_in("b", by_password("second"))).unwrap();
    ask(&running, set(None, "third")).unwrap();
    ask(&running, log_in("c", by_password("third"))).unwrap();
    assert_eq!(is_in("c").unwrap().scope, Scope::Read, "as before");
    let link = LoginBy::Link { name: "bob".to_owned(), scope: Scope::Operate };
    ask(&running, log_in("d", link)).unwrap();
    ask(&running, AccessOrder::RemovePassword { name: "ann".parse().unwrap() }).unwrap();
    assert_eq!((is_in("c"), is_in("d").is_some()), (None, true));
    ask(&running, AccessOrder::Logout { hash: secret_hash("d") }).unwrap();
    assert_eq!(is_in("d"), None);
    running.stop(Stopping::KeepJobs);
}

#[test]
fn there_are_so_many_tokens_and_logins_and_not_more() {
    let place = Place::new("success");
    let now = (place.fleet.now)();
    let filled: Result<(), WriteError<DbError>> = place.store().write(move |tx| {
        for number in 0..TOKENS_MAX {
            let hash = secret_hash(&number.to_string());
            let token = Token {
                id: format!("tok-{number}").parse().unwrap(),
                name: format!("t{number}").parse().unwrap(),
                scope: Scope::Read,
                created_at: now,
                created_by: "me".to_owned(),
                expires_at: None,
                used_at: None,
                revoked_at: None,
            };
            tx.insert_token(&token, &hash)?;
        }
        for number in 0..LOGINS_MAX {
            let (who, scope) = ("ann".to_owned(), Scope::Read);
            // The first is over when the next one comes.
            let lasts = if number == 0 { SignedDuration::ZERO } else { LOGIN_LASTS };
            let login =
                Login { who, scope, person: None, created_at: now, expires_at: now + lasts };
            let earlier = now - SignedDuration::from_hours(1);
            tx.insert_login(
                &Login { created_at: earlier, ..login },
                &secret_hash(&number.to_string()),
            )?;
        }
        Ok(())
    });
    filled.unwrap();
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    assert_eq!(refused(&running, create("more", "more", None)), RefusedKind::Busy);
    ask(&running, AccessOrder::RevokeToken { token: "t7".to_owned() }).unwrap();
    ask(&running, create("more", "more", None)).unwrap();
    let link = || LoginBy::Link { name: "bob".to_owned(), scope: Scope::Read };
    ask(&running, log_in("a", link())).unwrap();
    assert_eq!(refused(&running, log_in("b", link())), RefusedKind::NotAllowed);
    assert_eq!(place.reader().count_logins().unwrap(), LOGINS_MAX);
    ask(&running, AccessOrder::LogoutAll).unwrap();
    assert_eq!(place.reader().count_logins().unwrap(), 0);
    running.stop(Stopping::KeepJobs);
}

#[test]
fn neither_an_agent_nor_somebody_unknown_changes_who_may_do_what() {
    let place = Place::new("success");
    let running = place.daemon(DaemonMode::Permanent, CONFIG);
    for by in [Origin::Unknown, Origin::Run(RunId::mint(Timestamp::UNIX_EPOCH, [1; 10]))] {
        let order = create("mine", "mine", None);
        let asked = running.handle.of(by).ask(Command::Access { order, by: "me".to_owned() });
        assert_eq!(asked.unwrap_err().kind, RefusedKind::NotAllowed);
    }
    assert_eq!(place.reader().tokens().unwrap(), []);
    running.stop(Stopping::KeepJobs);
}

#[test]
fn what_is_ordered_shows_no_hash() {
    let orders = [create("ci", "s", None), set(None, "h"), log_in("c", by_password("h"))];
    let shown = format!("{orders:?}");
    assert_eq!(shown, "[CreateToken(ci, read), SetPassword(ann, None), Login(ann)]");
}
