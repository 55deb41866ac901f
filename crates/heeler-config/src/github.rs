//! GitHub as the fleet uses it: the account under which it acts.

use crate::reader::ConfigReader;
use crate::shape::section;
use crate::value::SpannedValue;
use crate::webhook_schedule::is_login;

section! {
    /// GitHub as the fleet uses it.
    pub(crate) struct GithubKeys ("github") {
        /// Login of the account under which the fleet acts, such as `heeler-bot` or `my-app[bot]`. Its own events
        /// never start anything, even with `bots: true`.
        bot: SpannedValue<String>,
    }
}

impl GithubKeys {
    pub(crate) fn check(&self, reader: &mut ConfigReader) {
        if !is_login(&self.bot.value) {
            let message = format!("`{}` is no name of an account", self.bot.value);
            let expected = "a login without `@`, such as `heeler-bot` or `my-app[bot]`";
            reader.error(self.bot.at, message).expected(expected);
        }
    }
}

/// Checked settings of GitHub.
#[derive(Debug, Clone, PartialEq)]
pub struct GithubConfig {
    /// Login of the account under which the fleet acts.
    pub bot: String,
}
