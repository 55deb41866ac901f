//! Commands that change which browsers receive notices by Web Push.
//!
//! Start at [`BrowserOperation`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most browsers that one person can add.
pub const BROWSERS_PER_PERSON_MAX: usize = 20;

/// Most browsers of a fleet. Each event becomes one message for each of them.
pub(crate) const BROWSERS_MAX: usize = 100;

/// Most notices that wait for one browser. So push services that do not answer cannot fill the space that
/// all channels share.
pub(crate) const BROWSER_WAITING_MAX: usize = 5;

/// Longest description of a browser, in characters.
pub(crate) const BROWSER_LABEL_CHARS_MAX: usize = 80;

/// Change to the browsers that receive notices.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrowserOperation {
    /// Create the key by which push services recognize the fleet, unless there is one.
    EnsureKey,
    /// Add a browser. It belongs to the requester.
    Add(Box<NewBrowser>),
    /// Remove a browser.
    Remove {
        /// Its ID.
        browser: String,
        /// Person to whom it must belong; `None` if it may belong to any.
        owner: Option<String>,
    },
}

/// A browser that a person adds.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct NewBrowser {
    /// Channel of `notify`; `None` if the config has only one with `web_push`.
    pub channel: Option<String>,
    /// Description for people.
    pub label: String,
    /// Address at its push service.
    pub endpoint: String,
    /// Keys for the encryption, as base64.
    pub public_key: String,
    pub auth_secret: String,
}

/// Omits addresses and keys, which must not reach logs.
impl fmt::Debug for BrowserOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrowserOperation::EnsureKey => f.write_str("EnsureKey"),
            BrowserOperation::Add(browser) => write!(f, "Add({browser:?})"),
            BrowserOperation::Remove { browser, .. } => write!(f, "Remove({browser:?})"),
        }
    }
}

impl fmt::Debug for NewBrowser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewBrowser({:?})", self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_shows_no_address_and_no_key() {
        let operation = BrowserOperation::Add(Box::new(NewBrowser {
            channel: None,
            label: "Firefox".to_owned(),
            endpoint: "https://push.example/secret-address".to_owned(),
            public_key: "secret-key".to_owned(),
            auth_secret: "secret-auth".to_owned(),
        }));
        let shown = format!("{operation:?}");
        assert!(shown.contains("Firefox") && !shown.contains("secret"), "{shown}");
    }
}
