//! `heeler chat`: a conversation with an agent of the fleet and the workers it starts. Start at
//! [`run`].

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueEnum};
use heeler_chat::{
    AgentSlashCommand, ChatTheme, Conversation, ConversationOptions, ConversationState,
    OldFormatPolicy, OpenedSessionFile, SessionDirectory, SessionDirectoryError, SessionFile,
    WorkerExitPolicy,
};
use heeler_config::{AgentConfig, LoadedConfig, RuntimeConfig};
use heeler_model::Session;
use heeler_store::history::is_conversation_log;
use heeler_tui::{SessionPicker, TerminalHandle, TerminalTheme};

use crate::chat::agent_commands::find_agent_commands;
use crate::chat::{self, ChatScreenOptions, DaemonFleet, SessionPreviewLoader, placeholder_card};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::job_watch::KeyboardInput;
use crate::output;
use crate::process_env;
use crate::shared_args;

/// Help footer of `chat`.
pub(crate) const ABOUT: &str = "Examples:
  heeler chat                          # the fleet's only agent
  heeler chat lead --workers leave
  heeler --resume                      # choose from a list
  heeler chat --resume chat-1a2b       # a unique prefix of the ID
  printf 'What is new?\\n/cost\\n' | heeler chat lead

Type /help in the conversation for its commands. Everything shown is saved: however the conversation
ends, even by kill -9, --resume continues it. Without a terminal, lines are read and printed.";

/// Arguments of `chat`.
#[derive(Args)]
pub(crate) struct ChatArgs {
    /// Agent to chat with [default: the only one, or the session's]
    #[arg(add = shared_args::agents())]
    agent: Option<String>,
    /// Continue a session; without an ID, choose from a list
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// Restart the loops that were active when the session ended
    #[arg(long, requires = "resume")]
    restart_loops: bool,
    /// Handling of workers that are still running when you leave
    #[arg(long, value_name = "POLICY", default_value = "ask")]
    workers: AtExitArg,
    /// Ask the agent at the end for insights to remember; this is one more request to the model
    #[arg(long, overrides_with = "no_insights")]
    insights: bool,
    /// Do not ask the agent at the end for insights (the default)
    #[arg(long, hide = true)]
    no_insights: bool,
    /// Read and print plain lines, even on a terminal; questions are not asked
    #[arg(long)]
    plain: bool,
    /// Read and print plain lines for a screen reader; questions are asked as lines
    #[arg(long, conflicts_with = "plain")]
    screen_reader: bool,
    /// Colours of the screen [default: by NO_COLOR and COLORFGBG]
    #[arg(long, value_name = "THEME")]
    theme: Option<ThemeArg>,
}

impl ChatArgs {
    /// Returns the keyboard of a person who answers questions without a screen.
    fn keyboard(&self) -> Option<KeyboardInput> {
        self.screen_reader.then(|| KeyboardInput::find(false)).flatten()
    }

    /// Returns true if the conversation has a screen.
    fn uses_screen(&self) -> bool {
        // Both ends must be terminals: a screen cannot read keys from a pipe nor be drawn into one.
        let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        is_terminal && !self.plain && !self.screen_reader
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ThemeArg {
    /// For a dark background
    Dark,
    /// For a light background
    Light,
    /// No colours
    None,
}

impl From<ThemeArg> for ChatTheme {
    fn from(arg: ThemeArg) -> ChatTheme {
        match arg {
            ThemeArg::Dark => ChatTheme::Dark,
            ThemeArg::Light => ChatTheme::Light,
            ThemeArg::None => ChatTheme::None,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AtExitArg {
    /// Ask; without a terminal, let them run
    Ask,
    /// Stop them
    Stop,
    /// Let them run under the daemon
    Leave,
}

impl From<AtExitArg> for WorkerExitPolicy {
    fn from(arg: AtExitArg) -> WorkerExitPolicy {
        match arg {
            AtExitArg::Ask => WorkerExitPolicy::Ask,
            AtExitArg::Stop => WorkerExitPolicy::Stop,
            AtExitArg::Leave => WorkerExitPolicy::KeepRunning,
        }
    }
}

/// The variable of agents-fleet keeps its meaning for people who come from there.
fn old_format_policy(env: &BTreeMap<String, String>) -> OldFormatPolicy {
    match env.get("AGENTS_FLEET_NO_MIGRATE").is_some_and(|value| value == "1") {
        true => OldFormatPolicy::Keep,
        false => OldFormatPolicy::Migrate,
    }
}

/// Runs `chat`.
pub(crate) fn run(global: &GlobalArgs, args: &ChatArgs) -> CommandResult {
    let here = process_env::working_directory()?;
    let env: BTreeMap<String, String> = std::env::vars().collect();
    let sessions = session_directory(&env, &here)?;
    let on_screen = args.uses_screen();
    let keyboard = args.keyboard();
    let theme = args.theme.map_or_else(|| chat::theme(&env), |theme| ChatTheme::from(theme).into());
    // Signals must be handled before the terminal changes mode, so that every exit restores it.
    let mut inputs = chat::ChatInputQueue::new()?;
    let mut terminal = None;
    let resumed = match &args.resume {
        None => None,
        Some(Some(id)) => Some(id.clone()),
        Some(None) if on_screen => {
            // The conversation takes over this handle, so the terminal's mode stays the same.
            let opened = terminal.insert(TerminalHandle::open().map_err(anyhow::Error::from)?);
            match pick_session(&sessions, opened, &mut inputs, theme)? {
                Some(id) => Some(id),
                None => return Ok(()),
            }
        }
        // Without a screen no one can choose, so the IDs are printed for the next command.
        Some(None) => return list(&sessions),
    };
    let (session_file, warnings, context) = match resumed {
        Some(id) => {
            let mut opened = open_session(global, &sessions, &id, old_format_policy(&env))?;
            let context = find_session_fleet(global, &opened.session_file)?;
            // The session is locked since it was opened, so no other terminal changes it meanwhile.
            opened.warnings.extend(assign_agent(&mut opened.session_file, args, &context)?);
            (opened.session_file, opened.warnings, context)
        }
        None => {
            let (session_file, context) = create_session(global, args, &sessions, &here)?;
            (session_file, Vec::new(), context)
        }
    };
    let about = AgentAbout::of(&context, session_file.state().agent(), &env);
    let manner = ConversationOptions {
        permission_mode: about.permission_mode,
        model: about.model,
        context_tokens: context_tokens(&context, session_file.state()),
        agent_folder: about.folder,
        branch: about.branch,
        // Plain lines may come from a script, so the agent's questions are not asked there.
        attended: on_screen || keyboard.is_some(),
        worker_exit_policy: args.workers.into(),
        insights: args.insights && !args.no_insights,
        earlier_insights: load_insights(&sessions, session_file.state()),
        restart_loops: args.restart_loops,
        folder: here.clone(),
        agent_commands: about.commands.clone(),
        keys: if on_screen { heeler_tui::KEYS } else { &[] },
    };
    let agent_folder = about.directory.filter(|folder| folder.is_dir()).unwrap_or(here);
    let (fleet, events) = DaemonFleet::open(&context)?;
    let fleet = fleet.with_shell(agent_folder.clone());
    // Before the conversation begins: its first request may cause events.
    inputs.forward_events(events);
    // Read before the conversation takes the session file.
    let history = chat::prompt_history(&session_file);
    let conversation =
        Conversation::begin(sessions, session_file, Box::new(fleet), manner, process_env::now());
    let mut conversation = conversation.map_err(anyhow::Error::from)?;
    // Shown within the conversation: on the screen a printed line would be overdrawn.
    warnings.into_iter().for_each(|warning| conversation.warn(warning));
    match on_screen {
        true => {
            let screen = ChatScreenOptions {
                theme,
                history,
                agent_commands: about.commands,
                folder: agent_folder,
            };
            chat::run_on_screen(conversation, inputs, open_terminal(terminal)?, screen)
        }
        false => chat::run_plain(conversation, inputs, keyboard),
    }
}

/// Returns the terminal, opened if it is not yet.
fn open_terminal(opened: Option<TerminalHandle>) -> CommandResult<TerminalHandle> {
    Ok(opened.map_or_else(TerminalHandle::open, Ok).map_err(anyhow::Error::from)?)
}

/// Creates a session with the fleet of the current directory.
fn create_session(
    global: &GlobalArgs,
    args: &ChatArgs,
    sessions: &SessionDirectory,
    here: &Utf8Path,
) -> CommandResult<(SessionFile, CommandContext)> {
    let context = CommandContext::find(global)?;
    let agent = choose_agent(&fleet_config::load(&context)?, args.agent.as_deref(), None)?;
    // Fail before a session is created if the fleet's state cannot be opened.
    drop(context.open_reader()?);
    // With both paths, a later `--resume` from anywhere finds this fleet.
    let mut about = ConversationState::default();
    about.agent = Some(agent);
    about.state_dir = Some(context.state_dir.clone());
    about.folder = Some(here.to_owned());
    Ok((sessions.create(about, process_env::now()).map_err(not_opened)?, context))
}

/// Facts about an agent that the screen shows from the start.
#[derive(Default)]
struct AgentAbout {
    permission_mode: Option<String>,
    model: Option<String>,
    folder: Option<String>,
    branch: Option<String>,
    /// Its working directory.
    directory: Option<Utf8PathBuf>,
    /// Commands that it understands itself.
    commands: Vec<AgentSlashCommand>,
}

impl AgentAbout {
    /// Reads the config; a fleet that cannot be loaded is reported by the first turn.
    fn of(context: &CommandContext, agent: &str, env: &BTreeMap<String, String>) -> AgentAbout {
        let Ok(loaded) = fleet_config::load(context) else { return AgentAbout::default() };
        let Some(agent) = loaded.agents.iter().find(|known| known.name.as_str() == agent) else {
            return AgentAbout::default();
        };
        // Other runtimes have no permission modes.
        let mode =
            matches!(agent.runtime, RuntimeConfig::Sdk).then(|| agent.permission_mode.to_string());
        let folder = &agent.working_directory;
        AgentAbout {
            permission_mode: mode,
            model: agent.model.clone(),
            folder: folder.file_name().map(str::to_owned),
            branch: git_branch(folder),
            directory: Some(folder.clone()),
            commands: find_agent_commands(agent, env.get("HOME").map(String::as_str)),
        }
    }
}

/// Returns the tokens of a conversation's context at its start; `None` if they are unknown.
fn context_tokens(context: &CommandContext, state: &ConversationState) -> Option<u64> {
    let Some(session) = &state.session else { return Some(0) };
    // Without the number the conversation still works.
    let session = context.open_reader().ok()??.session_by_agent_id(session).ok()??;
    u64::try_from(session.token_estimate).ok().filter(|tokens| *tokens > 0)
}

/// Bytes of a file of git that are read.
const GIT_FILE_BYTES_MAX: u64 = 4096;

/// Returns the branch of a directory. Git itself is not started: its config may name programs.
fn git_branch(folder: &Utf8Path) -> Option<String> {
    let read = |path: &Utf8Path| {
        let mut text = String::new();
        let file = std::fs::File::open(path).ok().filter(|_| path.is_file())?;
        file.take(GIT_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let git = folder.ancestors().map(|above| above.join(".git")).find(|git| git.exists())?;
    let git = match git.is_dir() {
        true => git,
        // A worktree has a file that names the directory.
        false => git.with_file_name("").join(read(&git)?.trim().strip_prefix("gitdir: ")?),
    };
    let head = read(&git.join("HEAD"))?;
    Some(head.trim().strip_prefix("ref: refs/heads/")?.to_owned())
}

fn home(env: &BTreeMap<String, String>, here: &Utf8Path) -> CommandResult<Utf8PathBuf> {
    process_env::home(env, here).ok_or_else(process_env::no_home)
}

/// Returns the directories of sessions: Heeler's own, and agents-fleet's.
fn session_directory(
    env: &BTreeMap<String, String>,
    here: &Utf8Path,
) -> CommandResult<SessionDirectory> {
    // agents-fleet ignores HEELER_HOME, so its folder is found by HOME alone.
    let foreign = env.get("HOME").map(|home| Utf8Path::new(home).join(".fleet/sessions"));
    Ok(SessionDirectory::new(home(env, here)?.join("sessions"), foreign.into_iter().collect()))
}

/// Opens a session by its ID, or by the ID under which `session list` has an imported one.
fn open_session(
    global: &GlobalArgs,
    sessions: &SessionDirectory,
    id: &str,
    older: OldFormatPolicy,
) -> CommandResult<OpenedSessionFile> {
    let now = process_env::now();
    let unknown = match sessions.open(id, now, older) {
        Err(error @ SessionDirectoryError::Unknown { .. }) => error,
        opened => return opened.map_err(not_opened),
    };
    // Without a fleet here, the first error tells more.
    let reader = CommandContext::find(global).ok().and_then(|context| context.open_reader().ok());
    let listed = reader.flatten().and_then(|reader| reader.find_session(id).ok());
    let is_conversation =
        |session: &Session| session.log_path.as_deref().is_some_and(is_conversation_log);
    match listed.filter(is_conversation).and_then(|session| session.agent_session_id) {
        Some(own) => sessions.open(own.as_str(), now, older).map_err(not_opened),
        None => Err(not_opened(unknown)),
    }
}

fn not_opened(error: SessionDirectoryError) -> CommandFailure {
    let code = match &error {
        SessionDirectoryError::Unknown { .. } => FailureCode::NotFound,
        SessionDirectoryError::Busy { .. } => FailureCode::Refused,
        _ => FailureCode::Failed,
    };
    CommandFailure::new(code, error).hint("heeler --resume lists all sessions")
}

/// Finds the fleet of a session: the one named on the command line, or else the one in the state
/// directory where the session began.
fn find_session_fleet(
    global: &GlobalArgs,
    session_file: &SessionFile,
) -> CommandResult<CommandContext> {
    let about = session_file.state();
    // The config is found from the folder in which the session began, not from the current one.
    let folder = about.folder.clone().filter(|folder| folder.is_dir());
    // If the folder is gone, the project was moved together with its state.
    let state_dir = about.state_dir.clone().filter(|own| folder.is_some() || own.is_dir());
    let mut global = global.clone();
    if global.config.is_none() {
        global.config = folder;
    }
    let context = CommandContext::find(&global)?;
    // A person who names a state directory decides; the session then moves there.
    match state_dir.filter(|own| global.state_dir.is_none() && *own != context.state_dir) {
        None => Ok(context),
        Some(own) if own.is_dir() => {
            global.state_dir = Some(own);
            CommandContext::find(&global)
        }
        Some(own) => {
            // Elsewhere the agent would not know the earlier messages.
            let message = format!("the session's state directory {own} no longer exists");
            let hint = format!("-s {} continues the session there", context.state_dir);
            Err(CommandFailure::message(FailureCode::Refused, message).hint(hint))
        }
    }
}

/// Assigns the agent that continues a session, and saves the state directory. Returns a warning if
/// it is another agent than before.
fn assign_agent(
    session_file: &mut SessionFile,
    args: &ChatArgs,
    context: &CommandContext,
) -> CommandResult<Option<String>> {
    let known = session_file.state().agent.clone();
    // The agent itself is not checked here: its turns report it if it is gone.
    if args.agent.is_none() && known.is_some() {
        if session_file.state().state_dir.as_ref() != Some(&context.state_dir) {
            let state_dir = Some(context.state_dir.clone());
            session_file
                .save_or_defer(|about| about.state_dir = state_dir)
                .map_err(anyhow::Error::from)?;
        }
        return Ok(None);
    }
    let id = session_file.id().to_owned();
    let agent =
        choose_agent(&fleet_config::load(context)?, args.agent.as_deref(), Some(id.as_str()))?;
    if known.as_deref() == Some(&agent) {
        return Ok(None);
    }
    let warning = known.map(|known| {
        format!(
            "{agent} continues this session, but does not know the messages exchanged with {known}"
        )
    });
    let state_dir = Some(context.state_dir.clone());
    // Another agent cannot continue the native session, so it starts a new one.
    session_file
        .save_or_defer(|about| {
            (about.agent, about.state_dir, about.session) = (Some(agent), state_dir, None);
        })
        .map_err(anyhow::Error::from)?;
    Ok(warning)
}

/// Chooses the agent, which must have a runtime that can converse. `resumed` is the session that it
/// continues.
fn choose_agent(
    loaded: &LoadedConfig,
    name: Option<&str>,
    resumed: Option<&str>,
) -> CommandResult<String> {
    let able: Vec<&AgentConfig> = loaded.agents.iter().filter(|it| can_talk(it)).collect();
    let names = || able.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let agent = match (name, &able[..]) {
        (Some(name), _) => loaded.find_agent(name).map_err(|error| {
            let hint = format!("heeler chat AGENT, with one of: {}", names());
            CommandFailure::new(FailureCode::NotFound, error).hint(hint)
        })?,
        // Agents that cannot converse do not make the choice ambiguous.
        (None, [one]) => one,
        (None, []) => return Err(no_agent_failure()),
        (None, [first, ..]) => {
            let message = format!("several agents can chat: {}", names());
            // With the session's ID, or the command would start a new session.
            let resume = resumed.map(|id| format!(" --resume {id}")).unwrap_or_default();
            let hint = format!("heeler chat {}{resume}", first.name);
            return Err(CommandFailure::message(FailureCode::Usage, message).hint(hint));
        }
    };
    match can_talk(agent) {
        true => Ok(agent.name.to_string()),
        false => {
            let message = format!("{} cannot chat: its runtime takes a single prompt", agent.name);
            Err(CommandFailure::message(FailureCode::Usage, message)
                .hint("heeler trigger gives it a single job"))
        }
    }
}

fn can_talk(agent: &AgentConfig) -> bool {
    // The other runtimes take one prompt per process and cannot receive messages in between.
    !matches!(agent.runtime, RuntimeConfig::Cli | RuntimeConfig::Command(_))
}

fn no_agent_failure() -> CommandFailure {
    CommandFailure::message(
        FailureCode::NotFound,
        "the fleet has no agent with runtime sdk or scripted",
    )
    .hint("heeler init agent adds one")
}

/// Returns the insights of earlier sessions if this session has no turns; they go into its first
/// turn.
fn load_insights(sessions: &SessionDirectory, about: &ConversationState) -> Option<String> {
    // A session that has turns received the insights with its first one.
    let is_new = about.turns.is_empty();
    is_new
        .then(|| sessions.latest_insights(about.agent.as_deref(), about.folder.as_deref()))
        .flatten()
}

fn pick_session(
    sessions: &SessionDirectory,
    terminal: &mut TerminalHandle,
    inputs: &mut chat::ChatInputQueue,
    theme: TerminalTheme,
) -> CommandResult<Option<String>> {
    let named = sessions.entries().map_err(not_opened)?;
    let mut picker = SessionPicker::new(named.iter().map(placeholder_card).collect(), theme);
    let glances = SessionPreviewLoader::start(sessions, named);
    let look = |context| glances.prioritize_from(context);
    let is_left = || inputs.is_exit_requested();
    Ok(heeler_tui::run_picker(
        terminal,
        &mut picker,
        &glances.cards,
        look,
        is_left,
        process_env::now(),
    ))
}

/// Lists the sessions, without a terminal to choose on.
fn list(sessions: &SessionDirectory) -> CommandResult {
    for one in sessions.list().map_err(not_opened)? {
        let count = one.entry_count_label();
        let preview = one.fault.or(one.last_message).unwrap_or_default();
        // One line per session, so that the list can be filtered by line.
        let preview: String = preview.lines().next().unwrap_or_default().chars().take(80).collect();
        output::print_line(format!("{}  {}  {count}  {preview}", one.id, one.updated))?;
    }
    Ok(())
}
