//! Reasons that this machine cannot make a sandbox, with their cures. Start at [`sandbox_cure`].

/// Settings of the kernel that forbid sandboxes: file, forbidding value, cure.
const FORBIDDING_SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces: install a profile that allows them to bubblewrap \
         (docs/isolation.md has one), or run `sudo sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "this system forbids user namespaces: run `sudo sysctl -w \
         kernel.unprivileged_userns_clone=1`",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "this system allows no user namespaces: run `sudo sysctl -w user.max_user_namespaces=15000`",
    ),
];

/// Parts of bubblewrap's messages about forbidden namespaces.
const NAMESPACE_MESSAGES: [&str; 5] = [
    "No permissions to creat",
    "Creating new namespace failed",
    "setting up uid map",
    "RTM_NEWADDR",
    "Failed to make / slave",
];

/// Returns why bubblewrap could not make a sandbox, from its message.
pub(super) fn sandbox_cure(message: &str) -> String {
    cure_with(message, |path| std::fs::read_to_string(path).ok())
}

fn cure_with(message: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let message = if message.is_empty() { "bubblewrap ended without a message" } else { message };
    if !NAMESPACE_MESSAGES.iter().any(|part| message.contains(part)) {
        return message.to_owned();
    }
    let is_set = |(path, value, _): &&(&str, &str, &str)| {
        read(path).is_some_and(|found| found.trim() == *value)
    };
    let cure = FORBIDDING_SETTINGS.iter().find(is_set).map_or(
        "namespaces are forbidden here, as in most containers: run the fleet outside of the \
         container, or start the container so that it may create user namespaces",
        |(_, _, cure)| cure,
    );
    format!("{cure} ({message})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_forbids_a_sandbox_is_named() {
        let refused = "bwrap: setting up uid map: Permission denied";
        let with = |file: &'static str, value: &'static str| {
            cure_with(refused, move |path| (path.ends_with(file)).then(|| format!("{value}\n")))
        };
        assert!(with("apparmor_restrict_unprivileged_userns", "1").starts_with("AppArmor"));
        assert!(with("unprivileged_userns_clone", "0").contains("unprivileged_userns_clone=1"));
        assert!(with("max_user_namespaces", "0").contains("max_user_namespaces=15000"));
        assert!(with("max_user_namespaces", "100").contains("as in most containers"));
        assert!(with("max_user_namespaces", "100").contains(refused));
        let other = "bwrap: Can't find source path /x: No such file or directory";
        assert_eq!(cure_with(other, |_| None), other);
        assert_eq!(cure_with("", |_| None), "bubblewrap ended without a message");
    }
}
