//! Who asks, and what they may.

use std::net::SocketAddr;

use heeler_engine::Caller;
pub(crate) use heeler_model::AccessScope;

/// Where the names of users are looked up.
const USERS_FILE: &str = "/etc/passwd";

/// Who asks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestCaller {
    /// Their name, for the record.
    pub(crate) name: String,
    /// What they may.
    pub(crate) scope: AccessScope,
    /// Whether a process of a run asks. Nobody looks where nothing is to be changed: it is unknown
    /// then, and may change nothing.
    pub(crate) engine_caller: Caller,
    /// What their browser proves with that a page of ours asks; `None` where no browser does.
    pub(crate) csrf_token: Option<String>,
}

/// The other end of a connection over TCP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TcpPeer {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Ours.
    pub(crate) local: SocketAddr,
}

/// Returns the login name of a user, or their number in words.
pub fn login_name(user: u32) -> String {
    if user == 0 {
        return "root".to_owned();
    }
    let users = std::fs::read_to_string(USERS_FILE).unwrap_or_default();
    parse_user_name(&users, user).unwrap_or_else(|| format!("user {user}"))
}

/// Returns a user's name by the lines of [`USERS_FILE`].
fn parse_user_name(users: &str, user: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        let is_plain = !name.chars().any(char::is_control);
        (number == user && is_plain).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_their_login_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\n\n:x:7:7::/:\nbad\nann:x:1000:1000:Ann:/home/ann:\n";
        assert_eq!(parse_user_name(users, 0).as_deref(), Some("root"));
        assert_eq!(parse_user_name(users, 1000).as_deref(), Some("ann"));
        assert_eq!((parse_user_name(users, 7), parse_user_name(users, 8)), (None, None));
        assert_eq!(login_name(u32::MAX - 1), format!("user {}", u32::MAX - 1));
    }
}
