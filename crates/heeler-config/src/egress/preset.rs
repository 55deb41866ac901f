//! Named groups of hosts for the key `presets`.

use crate::words::words;

use super::host::HostPattern;

words! {
    /// Named group of hosts.
    pub enum EgressPreset ("network preset") {
        /// Claude's API and login.
        Anthropic = "anthropic",
        /// OpenAI's API and login.
        Openai = "openai",
        /// Google's model APIs and login.
        Google = "google",
        /// GitHub: git over https, the API and downloads.
        Github = "github",
        /// Packages of npm and yarn.
        Npm = "npm",
        /// Packages of PyPI.
        Pypi = "pypi",
        /// Packages of crates.io.
        Crates = "crates",
        /// Packages of Debian.
        Debian = "debian",
    }
}

impl EgressPreset {
    /// Returns the hosts of the group.
    pub fn hosts(self) -> &'static [&'static str] {
        match self {
            EgressPreset::Anthropic => {
                &["api.anthropic.com", "console.anthropic.com", "platform.claude.com"]
            }
            EgressPreset::Openai => &["api.openai.com", "auth.openai.com", "chatgpt.com"],
            EgressPreset::Google => &[
                "generativelanguage.googleapis.com",
                "aiplatform.googleapis.com",
                "cloudcode-pa.googleapis.com",
                "oauth2.googleapis.com",
                "accounts.google.com",
            ],
            EgressPreset::Github => &[
                "github.com",
                "api.github.com",
                "codeload.github.com",
                "raw.githubusercontent.com",
                "objects.githubusercontent.com",
                "release-assets.githubusercontent.com",
                "media.githubusercontent.com",
                "github-cloud.githubusercontent.com",
            ],
            EgressPreset::Npm => &["registry.npmjs.org", "registry.yarnpkg.com"],
            EgressPreset::Pypi => &["pypi.org", "files.pythonhosted.org"],
            EgressPreset::Crates => &["crates.io", "index.crates.io", "static.crates.io"],
            EgressPreset::Debian => &["deb.debian.org", "security.debian.org"],
        }
    }

    pub(super) fn patterns(self) -> impl Iterator<Item = HostPattern> {
        // A test parses every host.
        self.hosts().iter().filter_map(|host| host.parse().ok())
    }
}
