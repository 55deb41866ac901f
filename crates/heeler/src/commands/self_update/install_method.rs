//! How the program was installed, by the place that it is in. Start at [`InstallMethod::find`].

use camino::{Utf8Path, Utf8PathBuf};

use super::ReleaseVersion;

const RELEASES: &str = "https://github.com/heeler/heeler/releases";

/// Way in which the program was installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstallMethod {
    /// `install.sh`, into this folder.
    Script(Utf8PathBuf),
    Npm,
    /// `npx`, which keeps the package in a cache.
    Npx,
    Uv,
    /// `uvx`, which keeps the package in a cache.
    Uvx,
    Pipx,
    /// pip, into the environment with this program folder.
    Pip(Utf8PathBuf),
    Debian,
    Homebrew,
    Cargo,
    /// The image of a release.
    Container,
    Unknown,
}

impl InstallMethod {
    /// Returns the way by the real path of the program. `exists` says whether a file is there.
    pub(super) fn find(program: &Utf8Path, exists: &dyn Fn(&Utf8Path) -> bool) -> InstallMethod {
        let is_below = |names: &[&str]| {
            let parts: Vec<&str> = program.components().map(|part| part.as_str()).collect();
            parts.windows(names.len()).any(|window| window == names)
        };
        let folder = program.parent().unwrap_or(program);
        let above = folder.parent().unwrap_or(folder);
        match () {
            () if is_below(&["_npx"]) => InstallMethod::Npx,
            () if is_below(&["node_modules"]) => InstallMethod::Npm,
            () if is_below(&["Cellar", "heeler"]) => InstallMethod::Homebrew,
            () if is_below(&["uv", "tools", "heeler"]) => InstallMethod::Uv,
            () if is_below(&["uv", "archive-v0"]) => InstallMethod::Uvx,
            () if is_below(&["pipx", "venvs", "heeler"]) => InstallMethod::Pipx,
            () if program == "/usr/lib/heeler/heeler" => {
                match exists(Utf8Path::new("/var/lib/dpkg/info/heeler.list")) {
                    true => InstallMethod::Debian,
                    false => InstallMethod::Container,
                }
            }
            () if folder.ends_with("lib/heeler")
                && exists(&folder.join("heeler-inside-static")) =>
            {
                InstallMethod::Script(above.parent().unwrap_or(above).to_owned())
            }
            () if exists(&above.join(".crates.toml")) => InstallMethod::Cargo,
            () if exists(&above.join("pyvenv.cfg")) => InstallMethod::Pip(folder.to_owned()),
            () => InstallMethod::Unknown,
        }
    }

    /// Returns the name for programs.
    pub(super) fn name(&self) -> &'static str {
        match self {
            InstallMethod::Script(_) => "install.sh",
            InstallMethod::Npm => "npm",
            InstallMethod::Npx => "npx",
            InstallMethod::Uv => "uv",
            InstallMethod::Uvx => "uvx",
            InstallMethod::Pipx => "pipx",
            InstallMethod::Pip(_) => "pip",
            InstallMethod::Debian => "deb",
            InstallMethod::Homebrew => "brew",
            InstallMethod::Cargo => "cargo",
            InstallMethod::Container => "container",
            InstallMethod::Unknown => "unknown",
        }
    }

    /// Returns the command that installs a release in the same way.
    pub(super) fn upgrade_command(&self, to: &ReleaseVersion) -> String {
        match self {
            InstallMethod::Script(prefix) => {
                let script = format!("curl -fsSL {RELEASES}/download/v{to}/install.sh");
                match prefix.ends_with(".local") {
                    true => format!("{script} | sh"),
                    false => format!("{script} | HEELER_INSTALL_DIR='{prefix}' sh"),
                }
            }
            InstallMethod::Npm => format!("npm install -g heeler@{to}"),
            InstallMethod::Npx => format!("npx heeler@{to}"),
            InstallMethod::Uv => "uv tool upgrade heeler".to_owned(),
            InstallMethod::Uvx => format!("uvx heeler@{to}"),
            InstallMethod::Pipx => "pipx upgrade heeler".to_owned(),
            InstallMethod::Pip(folder) => format!("'{folder}/pip' install heeler=={to}"),
            InstallMethod::Debian => {
                let processor = match std::env::consts::ARCH {
                    "aarch64" => "arm64",
                    _ => "amd64",
                };
                let file = format!("heeler_{to}_{processor}.deb");
                format!("curl -fLO {RELEASES}/download/v{to}/{file} && sudo dpkg -i {file}")
            }
            InstallMethod::Homebrew => {
                format!("curl -fLO {RELEASES}/download/v{to}/heeler.rb && brew install ./heeler.rb")
            }
            InstallMethod::Cargo => {
                format!("git checkout v{to} && cargo install --path crates/heeler --locked")
            }
            InstallMethod::Container => format!("docker pull ghcr.io/heeler/heeler:{to}"),
            InstallMethod::Unknown => format!("see {RELEASES}/tag/v{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: &str, there: &[&str], name: &str, upgrade: &str) {
        let exists = |path: &Utf8Path| there.contains(&path.as_str());
        let method = InstallMethod::find(Utf8Path::new(program), &exists);
        assert_eq!(method.name(), name);
        let version = ReleaseVersion::parse("1.2.3").unwrap();
        let command = method.upgrade_command(&version);
        assert!(command.contains(upgrade), "{command}");
    }

    #[test]
    fn the_way_of_installation_is_told_by_the_place() {
        let inside = "/home/ann/.local/lib/heeler/heeler-inside-static";
        check("/home/ann/.local/lib/heeler/heeler", &[inside], "install.sh", "install.sh | sh");
        let inside = "/opt/lib/heeler/heeler-inside-static";
        check("/opt/lib/heeler/heeler", &[inside], "install.sh", "HEELER_INSTALL_DIR='/opt' sh");
        let npm = "/usr/lib/node_modules/heeler/node_modules/@heeler/linux-x64/bin/heeler";
        check(npm, &[], "npm", "npm install -g heeler@1.2.3");
        let npx = "/home/ann/.npm/_npx/0123/node_modules/@heeler/linux-x64/bin/heeler";
        check(npx, &[], "npx", "npx heeler@1.2.3");
        check("/home/ann/.local/share/uv/tools/heeler/bin/heeler", &[], "uv", "uv tool upgrade");
        check("/home/ann/.cache/uv/archive-v0/Ab/bin/heeler", &[], "uvx", "uvx heeler@1.2.3");
        check("/home/ann/.local/share/pipx/venvs/heeler/bin/heeler", &[], "pipx", "pipx upgrade");
        check("/srv/env/bin/heeler", &["/srv/env/pyvenv.cfg"], "pip", "'/srv/env/bin/pip' install");
        let listed = "/var/lib/dpkg/info/heeler.list";
        check("/usr/lib/heeler/heeler", &[listed], "deb", "sudo dpkg -i heeler_1.2.3_");
        check("/usr/lib/heeler/heeler", &[], "container", "docker pull");
        check("/opt/homebrew/Cellar/heeler/1.0.0/libexec/heeler", &[], "brew", "brew install");
        let crates = "/home/ann/.cargo/.crates.toml";
        check("/home/ann/.cargo/bin/heeler", &[crates], "cargo", "cargo install --path");
        check("/srv/heeler/target/debug/heeler", &[], "unknown", "releases/tag/v1.2.3");
    }
}
