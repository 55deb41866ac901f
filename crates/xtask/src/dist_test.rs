//! `cargo xtask dist-test`: installs each file of a release in a bare system and uses the program.
//!
//! The bare system is a Debian without Rust, made by `debootstrap` in `target/bare-system`. npm and
//! pip of this machine install from the local files only. Start at [`run_all`].

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::dist::{DistTarget, VERSION};
use crate::packages::install_debian_packages;
use crate::shell::{run, step, workspace_root};

/// Release of Debian that is installed.
const DEBIAN: &str = "bookworm";

/// Commands of a newcomer. They must work wherever the program is.
const USE: &str = r#"
set -eu
heeler --version
test "$(heeler --version)" = "heeler @VERSION@"
cd "$(mktemp -d)"
heeler init
heeler trigger greeter
heeler jobs
heeler start -d
heeler status --check
heeler stop
if heeler status --check; then echo "a daemon is left"; exit 1; fi
"#;

/// Arguments of `dist-test`.
#[derive(Args)]
pub(crate) struct DistTestArgs {
    /// Folder with the files that `dist` made
    #[arg(long, default_value = "target/dist-files")]
    files: PathBuf,
}

/// Installs and uses every file.
pub(crate) fn run_all(args: &DistTestArgs) -> Result<()> {
    let files = std::fs::canonicalize(&args.files)
        .with_context(|| format!("{} is missing: cargo xtask dist", args.files.display()))?;
    let target = DistTarget::find(std::env::consts::ARCH)?;
    let system = bare_system()?;
    let bare = BareSystem::open(system, files)?;
    step("SHA256SUMS", || run_in(&bare.files, "sha256sum", &["--check", "--quiet", "SHA256SUMS"]))?;
    step("archive", || test_archive(&bare, target))?;
    step("install.sh", || test_script(&bare))?;
    step("Debian's package", || test_debian(&bare, target))?;
    step("npm", || test_npm(&bare, target))?;
    step("wheel", || test_wheel(&bare))?;
    step("image", || test_image(&bare, target))?;
    eprintln!("dist-test: all files can be installed and used");
    Ok(())
}

/// Makes the bare system, unless it exists.
fn bare_system() -> Result<PathBuf> {
    let root = workspace_root()?.join("target/bare-system");
    if root.join("usr").is_dir() {
        return Ok(root);
    }
    install_debian_packages(&[("debootstrap", "debootstrap")])?;
    let parts = root.with_extension("new");
    if parts.exists() {
        std::fs::remove_dir_all(&parts)?;
    }
    let to = parts.to_str().context("the path of the workspace is not text")?;
    run(&["debootstrap", "--variant=minbase", "--include=curl", DEBIAN, to], &[])?;
    std::fs::rename(&parts, &root)?;
    Ok(root)
}

/// A bare system, and the files of the release that it sees at `/files`.
struct BareSystem {
    root: PathBuf,
    files: PathBuf,
}

impl BareSystem {
    /// Checks that the system has no Rust.
    fn open(root: PathBuf, files: PathBuf) -> Result<BareSystem> {
        let bare = BareSystem { root, files };
        bare.shell("! command -v cargo && ! command -v rustc && ! command -v heeler")
            .context("the system is not bare")?;
        Ok(bare)
    }

    /// Runs a script as root in a copy of the system that ends with it.
    fn shell(&self, script: &str) -> Result<()> {
        self.shell_as("", script)
    }

    /// Runs a script below `unshare`: its changes of the system are lost with the mounts, and its
    /// processes end with it.
    fn shell_as(&self, chroot: &str, script: &str) -> Result<()> {
        let (root, files) = (self.root.display(), self.files.display());
        let setup = format!(
            "set -eu
             layer=$(mktemp -d)
             mount -t tmpfs tmpfs \"$layer\"
             mkdir \"$layer/changes\" \"$layer/work\" \"$layer/root\"
             mount -t overlay overlay -o lowerdir='{root}',upperdir=\"$layer/changes\",workdir=\"$layer/work\" \"$layer/root\"
             mkdir -p \"$layer/root/files\" \"$layer/root/proc\" \"$layer/root/dev\" \"$layer/root/tmp\"
             mount --bind '{files}' \"$layer/root/files\"
             mount -t proc proc \"$layer/root/proc\"
             mount --rbind /dev \"$layer/root/dev\"
             exec chroot {chroot} \"$layer/root\" \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &setup, "sh"]);
        // The environment of cargo would be visible to the program.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        let status = command.args(["sh", "-c", script]).stdin(Stdio::null()).status()?;
        ensure!(status.success(), "the script ended with {status}: {script}");
        Ok(())
    }
}

fn use_script() -> String {
    USE.replace("@VERSION@", VERSION)
}

fn test_archive(bare: &BareSystem, target: DistTarget) -> Result<()> {
    let name = target.archive_name(VERSION);
    let script = format!("tar -xzf /files/{name}.tar.gz -C /opt && PATH=/opt/{name}:$PATH");
    bare.shell(&format!("{script}\n{}", use_script()))
}

/// The script downloads from a server of this machine, as from a release.
fn test_script(bare: &BareSystem) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    drop(listener);
    let mut server = Command::new("python3")
        .args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"])
        .current_dir(&bare.files)
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start python3")?;
    let script = format!(
        "until curl -fs http://127.0.0.1:{port}/install.sh -o /dev/null; do sleep 0.2; done
         export HEELER_DOWNLOAD_URL=http://127.0.0.1:{port}
         curl -fsSL $HEELER_DOWNLOAD_URL/install.sh | sh
         PATH=$HOME/.local/bin:$PATH\n{}",
        use_script()
    );
    let result = bare.shell(&script);
    server.kill()?;
    server.wait()?;
    result
}

fn test_debian(bare: &BareSystem, target: DistTarget) -> Result<()> {
    let package = format!("/files/heeler_{VERSION}_{}.deb", target.debian);
    bare.shell(&format!(
        "dpkg -i {package} && dpkg -V heeler && test -e /usr/share/man/man1/heeler.1.gz\n{}\n\
         dpkg -r heeler && test ! -e /usr/bin/heeler && test ! -e /usr/lib/heeler",
        use_script()
    ))
}

/// Uses the image's own files as the root, as its user. There is no shell in it.
fn test_image(bare: &BareSystem, target: DistTarget) -> Result<()> {
    let image = bare.files.join(format!("{}.oci.tar", target.archive_name(VERSION)));
    let folder = tempfile::tempdir()?;
    let to = folder.path().to_str().context("the folder of temporary files is not text")?;
    let from = image.to_str().context("the path of the image is not text")?;
    run(&["tar", "-xf", from, "-C", to], &[])?;
    let read = |path: PathBuf| -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    };
    let list = read(folder.path().join("manifest.json"))?;
    let layer = list[0]["Layers"][0].as_str().context("the image has no layer")?;
    let config = read(folder.path().join(list[0]["Config"].as_str().unwrap_or_default()))?;
    let user = config["config"]["User"].as_str().context("the image has no user")?;
    let root = folder.path().join("root");
    std::fs::create_dir(&root)?;
    let (layer, at) = (folder.path().join(layer), root.display().to_string());
    let layer = layer.to_str().context("the path of the layer is not text")?;
    run(&["tar", "-xzf", layer, "-C", &at, "--same-owner", "--numeric-owner"], &[])?;
    let image = BareSystem { root, files: bare.files.clone() };
    // `chroot` begins in the root, not in the folder that the image names.
    for args in [&["--version"][..], &["init", "/fleet"], &["-c", "/fleet", "trigger", "greeter"]] {
        image.program(user, args)?;
    }
    Ok(())
}

impl BareSystem {
    /// Runs the program of an image, with the environment and the folder that its config names.
    fn program(&self, user: &str, args: &[&str]) -> Result<()> {
        let root = self.root.to_str().context("a path is not text")?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
        command.arg("mkdir -p \"$1/proc\" \"$1/dev\" && mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && root=$1 user=$2 && shift 2 && exec chroot --userspec=\"$user\" \"$root\" \"$@\"");
        command.args(["sh", root, user, "/usr/bin/heeler"]);
        command.env_clear().envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")]);
        command.envs([("HOME", "/home/heeler"), ("HEELER_TRUST", "/fleet")]);
        let status = command.args(args).stdin(Stdio::null()).status()?;
        ensure!(status.success(), "`heeler {}` in the image ended with {status}", args.join(" "));
        Ok(())
    }
}

fn test_npm(bare: &BareSystem, target: DistTarget) -> Result<()> {
    install_debian_packages(&[("npm", "npm")])?;
    let folder = tempfile::tempdir()?;
    let file = |name: String| bare.files.join(name).display().to_string();
    let packages = [
        file(format!("heeler-linux-{}-{VERSION}.tgz", target.node)),
        file(format!("heeler-{VERSION}.tgz")),
    ];
    let mut args = vec!["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund"];
    args.extend(packages.iter().map(String::as_str));
    run_in(folder.path(), "npm", &args)?;
    use_program(&folder.path().join("node_modules/.bin"))
}

fn test_wheel(bare: &BareSystem) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let venv = folder.path().join("venv");
    let at = venv.to_str().context("a path is not text")?;
    run(&["python3", "-m", "venv", at], &[])?;
    let files = bare.files.to_str().context("a path is not text")?;
    let pip = venv.join("bin/pip");
    let pip = pip.to_str().context("a path is not text")?;
    run(&[pip, "install", "--quiet", "--no-index", "--find-links", files, "heeler"], &[])?;
    use_program(&venv.join("bin"))
}

/// Uses an installed program with a home of its own and without the programs of cargo.
fn use_program(folder: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let node = Command::new("sh").args(["-c", "dirname \"$(command -v node)\""]).output()?;
    let node = String::from_utf8(node.stdout)?;
    let path = format!("{}:/usr/bin:/bin:{}", folder.display(), node.trim());
    let mut command = Command::new("sh");
    command.args(["-c", &use_script()]).env_clear().env("PATH", path).env("HOME", home.path());
    let status = command.stdin(Stdio::null()).status()?;
    ensure!(status.success(), "the program in {} ended with {status}", folder.display());
    Ok(())
}

/// Runs a command in a folder.
fn run_in(folder: &Path, program: &str, args: &[&str]) -> Result<()> {
    eprintln!("$ {program} {}", args.join(" "));
    let status = Command::new(program).args(args).current_dir(folder).stdin(Stdio::null()).status();
    match status.with_context(|| format!("cannot start {program}"))?.success() {
        true => Ok(()),
        false => bail!("`{program} {}` failed", args.join(" ")),
    }
}
