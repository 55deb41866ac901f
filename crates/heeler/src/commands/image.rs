//! `heeler image`: builds the image in which agents run. Start at [`run`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::time::Duration;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_container::{
    BuildContext, ContainerEngine, ImageBuild, find_engine_socket, with_engine,
};
use sha2::{Digest as _, Sha256};

use crate::commands::doctor::engine_environment;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::trust::visible;

/// Help footer of `image build`.
pub(crate) const ABOUT: &str =
    "The image has the claude program of this machine, so agents run the same version inside and outside.
The engine pulls the base image from its registry; the packages come from the registries of the base
image. Nothing else needs a network. HTTP_PROXY, HTTPS_PROXY and NO_PROXY are passed to the build.

Examples:
  heeler image build
  heeler image build --from debian:bookworm-slim --package git --package python3
  heeler image build --from registry.example.com/dev:7 --no-packages --tag registry.example.com/agent:1
  heeler image build --print > Dockerfile";

/// Time limit of a build.
const BUILD_TIME_MAX: Duration = Duration::from_secs(3600);

/// Packages of an image for which none are named.
const PACKAGES_DEFAULT: [&str; 4] = ["ca-certificates", "curl", "git", "ripgrep"];

/// Name of the program in the files of the build.
const PROGRAM_NAME: &str = "claude";

/// Directory of the program in the image. No base image has files there.
const PROGRAM_FOLDER: &str = "/opt/heeler/bin";

/// Search path of a base image that defines none.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Label with the hash of the program.
const PROGRAM_LABEL: &str = "heeler.claude";

/// First bytes of a program in machine code.
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Number of bytes that are hashed at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Variables that the commands of a build get.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// Subcommands of `image`.
#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image for `docker.image` with the claude program of this machine
    #[command(after_help = ABOUT)]
    Build(ImageBuildArgs),
}

/// Arguments of `image build`.
#[derive(Args)]
pub(crate) struct ImageBuildArgs {
    /// Name of the image; the default is also that of `docker.image`
    #[arg(long, value_name = "NAME", default_value = "localhost/heeler-agent:latest")]
    tag: String,
    /// Base image. It needs glibc
    #[arg(long, value_name = "IMAGE", default_value = "node:22-slim")]
    from: String,
    /// Program to put into the image; by default the claude in PATH
    #[arg(long, value_name = "PATH")]
    claude: Option<Utf8PathBuf>,
    /// Install this version of claude with the npm of the base image instead
    #[arg(long, value_name = "VERSION", conflicts_with = "claude")]
    npm: Option<String>,
    /// Debian package to install; repeat it for several
    #[arg(long = "package", value_name = "NAME", conflicts_with = "no_packages")]
    packages: Vec<String>,
    /// Install no packages: the base image has all that agents need
    #[arg(long)]
    no_packages: bool,
    /// Network of the commands of the build
    #[arg(long, value_name = "MODE", default_value = "default", value_parser = ["default", "host", "none"])]
    network: String,
    /// Print the Dockerfile, and build nothing
    #[arg(long)]
    print: bool,
}

/// Source of claude in the image.
#[derive(Debug, Clone, Copy)]
enum ProgramSource<'s> {
    /// A file of the build.
    File,
    /// Version in the npm registry.
    Npm(&'s str),
}

/// Runs a subcommand of `image`.
pub(crate) fn run(global: &GlobalArgs, command: &ImageCommand) -> CommandResult {
    let ImageCommand::Build(args) = command;
    check_words(args)?;
    let source = args.npm.as_deref().map_or(ProgramSource::File, ProgramSource::Npm);
    let dockerfile = dockerfile(&args.from, &packages(args), source);
    if args.print {
        return Ok(output::print_line(dockerfile.trim_end())?);
    }
    let env = engine_environment(global);
    let variable = |name: &str| env.get(name).map(String::as_str);
    let exists = |path: &Utf8Path| path.exists();
    let socket = find_engine_socket(variable("DOCKER_HOST"), variable("XDG_RUNTIME_DIR"), exists)
        .map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
    let mut context = BuildContext::default();
    context.add_text("Dockerfile", &dockerfile).context("cannot describe the image")?;
    let mut labels = BTreeMap::new();
    if matches!(source, ProgramSource::File) {
        let path = find_claude(args.claude.as_deref(), variable("PATH").unwrap_or_default())?;
        let (file, hash) = open_program(&path)?;
        labels.insert(PROGRAM_LABEL.to_owned(), format!("sha256:{hash}"));
        context.add_program(PROGRAM_NAME, file).with_context(|| format!("cannot read {path}"))?;
    }
    context.finish();
    let arguments = PROXY_VARIABLES.iter().filter_map(|name| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some(((*name).to_owned(), value.to_owned()))
    });
    let arguments = arguments.collect();
    let build = ImageBuild {
        tag: &args.tag,
        network: &args.network,
        arguments: &arguments,
        labels: &labels,
    };
    let built = with_engine(&socket, BUILD_TIME_MAX, |engine: ContainerEngine| async move {
        engine.build(&build, context, &mut |text| print_progress(global, text)).await
    });
    built.map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
    Ok(output::print_line(format!("built {}", args.tag))?)
}

/// Prints a message of the engine.
fn print_progress(global: &GlobalArgs, text: &str) {
    let text = text.trim();
    if !global.quiet && !text.is_empty() {
        // A closed terminal does not end the build.
        drop(output::print_line(visible(text)));
    }
}

fn packages(args: &ImageBuildArgs) -> Vec<&str> {
    match (args.no_packages, args.packages.is_empty()) {
        (true, _) => Vec::new(),
        (false, true) => PACKAGES_DEFAULT.to_vec(),
        (false, false) => args.packages.iter().map(String::as_str).collect(),
    }
}

/// Refuses words that would be more than one word in a Dockerfile.
fn check_words(args: &ImageBuildArgs) -> CommandResult {
    let words = [&args.tag, &args.from].into_iter().chain(&args.npm).chain(&args.packages);
    let is_part = |it: char| it.is_ascii_alphanumeric() || "._-+:/@".contains(it);
    let is_word = |word: &str| {
        word.starts_with(|it: char| it.is_ascii_alphanumeric()) && word.chars().all(is_part)
    };
    match words.into_iter().find(|word| !is_word(word)) {
        None => Ok(()),
        Some(word) => Err(CommandFailure::message(
            FailureCode::Usage,
            format!("`{}` is no name of an image, package or version", visible(word)),
        )),
    }
}

/// Returns the description of the image.
fn dockerfile(from: &str, packages: &[&str], source: ProgramSource<'_>) -> String {
    let mut lines = vec!["# Made by `heeler image build`.".to_owned(), format!("FROM {from}")];
    if !packages.is_empty() {
        lines.push(format!(
            "RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*",
            packages.join(" ")
        ));
    }
    match source {
        ProgramSource::File => {
            lines.push(format!("COPY {PROGRAM_NAME} {PROGRAM_FOLDER}/{PROGRAM_NAME}"));
            lines.push(format!("ENV PATH=\"{PROGRAM_FOLDER}:${{PATH:-{PATH_DEFAULT}}}\""));
        }
        ProgramSource::Npm(version) => {
            lines.push(format!("RUN npm install --global @anthropic-ai/claude-code@{version}"));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the program that goes into the image.
fn find_claude(named: Option<&Utf8Path>, path: &str) -> CommandResult<Utf8PathBuf> {
    let found = match named {
        Some(named) => Some(named.to_owned()),
        None => path
            .split(':')
            .filter(|folder| folder.starts_with('/'))
            .map(|folder| Utf8Path::new(folder).join(PROGRAM_NAME))
            .find(|program| program.is_file()),
    };
    found.ok_or_else(|| {
        CommandFailure::message(FailureCode::Failed, "there is no claude in PATH")
            .hint("install it, name it with --claude PATH, or use --npm VERSION")
    })
}

/// Opens a program, and returns its hash.
fn open_program(path: &Utf8Path) -> CommandResult<(File, String)> {
    let read = || -> io::Result<(File, bool, String)> {
        let mut file = File::open(path)?;
        let mut start = [0; ELF_MAGIC.len()];
        let is_program = file.read_exact(&mut start).is_ok() && start == ELF_MAGIC;
        file.rewind()?;
        let (mut hasher, mut block) = (Sha256::new(), vec![0; BLOCK_BYTES]);
        loop {
            match file.read(&mut block)? {
                0 => break,
                read => hasher.update(&block[..read]),
            }
        }
        file.rewind()?;
        let hash = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((file, is_program, hash))
    };
    let (file, is_program, hash) = read().with_context(|| format!("cannot read {path}"))?;
    match is_program {
        true => Ok((file, hash)),
        false => Err(CommandFailure::message(
            FailureCode::Failed,
            format!("{path} is no program for Linux that works alone"),
        )
        .hint("name another one with --claude PATH, or use --npm VERSION")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dockerfile_has_the_packages_and_the_program() {
        let own = dockerfile("node:22-slim", &["git", "curl"], ProgramSource::File);
        assert_eq!(
            own,
            "# Made by `heeler image build`.\n\
             FROM node:22-slim\n\
             RUN apt-get update && apt-get install -y --no-install-recommends git curl && rm -rf /var/lib/apt/lists/*\n\
             COPY claude /opt/heeler/bin/claude\n\
             ENV PATH=\"/opt/heeler/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\"\n"
        );
        let npm = dockerfile("base", &[], ProgramSource::Npm("2.1.0"));
        assert_eq!(
            npm,
            "# Made by `heeler image build`.\nFROM base\n\
             RUN npm install --global @anthropic-ai/claude-code@2.1.0\n"
        );
    }

    #[test]
    fn only_a_program_in_machine_code_goes_into_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        let missing = find_claude(None, &format!("relative:{root}")).unwrap_err();
        assert!(format!("{:#}", missing.error).contains("no claude in PATH"));
        std::fs::write(root.join("claude"), "#!/bin/sh\n").unwrap();
        let script = find_claude(None, &format!("/nowhere:{root}")).unwrap();
        assert_eq!(script, root.join("claude"));
        let refused = open_program(&script).unwrap_err();
        assert!(format!("{:#}", refused.error).contains("works alone"));
        std::fs::write(&script, b"\x7fELF rest").unwrap();
        let (mut file, hash) = open_program(&script).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"\x7fELF rest");
        assert_eq!(hash.len(), 64);
    }
}
