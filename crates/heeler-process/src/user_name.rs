//! Login names of users.

/// File in which user names are looked up.
const USERS_FILE: &str = "/etc/passwd";

/// Returns the login name of a user ID, or `user N` if it is unknown.
pub fn login_name(user: u32) -> String {
    if user == 0 {
        return "root".to_owned();
    }
    let users = std::fs::read_to_string(USERS_FILE).unwrap_or_default();
    parse_user_name(&users, user).unwrap_or_else(|| format!("user {user}"))
}

/// Finds a user name in the content of [`USERS_FILE`].
fn parse_user_name(users: &str, user: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        // The name is printed in logs and terminals, where control characters do harm.
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
