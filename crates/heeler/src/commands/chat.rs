//! `heeler chat`: a person talks with an agent of the fleet, and with the workers that it sets to work.

use std::io::IsTerminal as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueEnum};
use heeler_chat::{About, AtExit, Book, Manner, Older, Shelf, ShelfError, Talk};
use heeler_model::config::{Agent, Loaded, Runtime};
use heeler_tui::{Picker, Terminal};

use crate::chat::{self, DaemonFleet, Glances, unread};
use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output;
use crate::place::{self, Place};

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler chat                          # the fleet's only agent
  heeler chat lead --workers leave
  heeler --resume                      # choose from a list
  heeler chat --resume chat-1a2b       # a beginning of the id will do
  printf 'What is new?\\n/cost\\n' | heeler chat lead

/help in the conversation lists what can be typed. Everything that is shown is on disk: after any way
out, also kill -9, --resume goes on where it was. Without a terminal, lines are read and printed.";

/// Arguments of `chat`.
#[derive(Args)]
pub(crate) struct ChatArgs {
    /// The agent to talk with [default: the only one, or the session's]
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Go on with a session; without an ID choose from a list
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// Restart the loops that were active when the session was left
    #[arg(long, requires = "resume")]
    restart_loops: bool,
    /// What becomes of workers that are at work when you leave
    #[arg(long, value_name = "WHAT", default_value = "ask")]
    workers: AtExitArg,
    /// Do not ask the agent at the end what it has learned
    #[arg(long)]
    no_insights: bool,
    /// Read and print lines, also on a terminal
    #[arg(long)]
    plain: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AtExitArg {
    /// You are asked; without a terminal they go on
    Ask,
    /// They are stopped
    Stop,
    /// They go on; the daemon has them
    Leave,
}

impl From<AtExitArg> for AtExit {
    fn from(arg: AtExitArg) -> AtExit {
        match arg {
            AtExitArg::Ask => AtExit::Ask,
            AtExitArg::Stop => AtExit::Stop,
            AtExitArg::Leave => AtExit::Leave,
        }
    }
}

/// Holds a conversation.
pub(crate) fn run(global: &Global, args: &ChatArgs) -> Outcome {
    let here = place::working_directory()?;
    let env: std::collections::BTreeMap<String, String> = std::env::vars().collect();
    let shelf = shelf(&env, &here)?;
    let on_screen =
        !args.plain && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    // Before the terminal is another: whatever ends us then gives it back.
    let mut inputs = chat::Inputs::new()?;
    let mut terminal = None;
    let resumed = match &args.resume {
        None => None,
        Some(Some(id)) => Some(id.clone()),
        Some(None) if on_screen => {
            let opened = terminal.insert(Terminal::open().map_err(anyhow::Error::from)?);
            match pick(&shelf, opened, &mut inputs, &env)? {
                Some(id) => Some(id),
                None => return Ok(()),
            }
        }
        Some(None) => return list(&shelf),
    };
    let older = match env.get("AGENTS_FLEET_NO_MIGRATE").is_some_and(|value| value == "1") {
        true => Older::Keep,
        false => Older::Migrate,
    };
    let (book, warnings, place) = match resumed {
        Some(id) => {
            let mut opened = shelf.open(&id, place::now(), older).map_err(not_opened)?;
            let place = place_of(global, &opened.book)?;
            opened.warnings.extend(adopt(&mut opened.book, args, &place)?);
            (opened.book, opened.warnings, place)
        }
        None => {
            let place = Place::find(global)?;
            let agent = choose(&fleet::load(&place)?, args.agent.as_deref())?;
            // Without a fleet that can be talked with no session is begun.
            drop(place.reader()?);
            let mut about = About::default();
            about.agent = Some(agent);
            about.state_dir = Some(place.state_dir.clone());
            about.folder = Some(here.clone());
            (shelf.create(about, place::now()).map_err(not_opened)?, Vec::new(), place)
        }
    };
    let manner = Manner {
        attended: on_screen,
        at_exit: args.workers.into(),
        insights: !args.no_insights,
        learned: learned(&shelf, book.about()),
        restart_loops: args.restart_loops,
        folder: here,
        keys: if on_screen { heeler_tui::KEYS } else { &[] },
    };
    let (fleet, happened) = DaemonFleet::open(&place)?;
    inputs.hear(happened);
    let history = chat::history(&book);
    let talk = Talk::begin(shelf, book, Box::new(fleet), manner, place::now());
    let mut talk = talk.map_err(anyhow::Error::from)?;
    warnings.into_iter().for_each(|warning| talk.warn(warning));
    match on_screen {
        true => {
            let terminal = match terminal {
                Some(terminal) => terminal,
                None => Terminal::open().map_err(anyhow::Error::from)?,
            };
            chat::on_screen(talk, inputs, terminal, history, &env)
        }
        false => chat::in_lines(talk, inputs),
    }
}

fn home(env: &std::collections::BTreeMap<String, String>, here: &Utf8Path) -> Outcome<Utf8PathBuf> {
    place::home(env, here).ok_or_else(place::no_home)
}

/// Returns where sessions are kept: ours, and those of agents-fleet.
fn shelf(env: &std::collections::BTreeMap<String, String>, here: &Utf8Path) -> Outcome<Shelf> {
    let foreign = env.get("HOME").map(|home| Utf8Path::new(home).join(".fleet/sessions"));
    Ok(Shelf::new(home(env, here)?.join("sessions"), foreign.into_iter().collect()))
}

fn not_opened(error: ShelfError) -> Failure {
    let code = match &error {
        ShelfError::Unknown { .. } => Code::NotFound,
        ShelfError::Busy { .. } => Code::Refused,
        _ => Code::Failed,
    };
    Failure::new(code, error).hint("heeler --resume lists the sessions")
}

/// Finds the fleet that a session belongs to: unless another is named, in the state directory that it
/// was begun in.
fn place_of(global: &Global, book: &Book) -> Outcome<Place> {
    let about = book.about();
    let folder = about.folder.clone().filter(|folder| folder.is_dir());
    // A project that was moved has its state with it.
    let state_dir = about.state_dir.clone().filter(|own| folder.is_some() || own.is_dir());
    let mut global = global.clone();
    if global.config.is_none() {
        global.config = folder;
    }
    let place = Place::find(&global)?;
    match state_dir.filter(|own| global.state_dir.is_none() && *own != place.state_dir) {
        None => Ok(place),
        Some(own) if own.is_dir() => {
            global.state_dir = Some(own);
            Place::find(&global)
        }
        Some(own) => {
            let message = format!("the session's state directory {own} is gone");
            let hint = format!("-s {} goes on with it there", place.state_dir);
            Err(Failure::message(Code::Refused, message).hint(hint))
        }
    }
}

/// Gives a session the agent that goes on with it, and notes where. Returns what the person should know
/// of another agent.
fn adopt(book: &mut Book, args: &ChatArgs, place: &Place) -> Outcome<Option<String>> {
    let known = book.about().agent.clone();
    if args.agent.is_none() && known.is_some() {
        if book.about().state_dir.as_ref() != Some(&place.state_dir) {
            let state_dir = Some(place.state_dir.clone());
            book.take_over(|about| about.state_dir = state_dir).map_err(anyhow::Error::from)?;
        }
        return Ok(None);
    }
    let agent = choose(&fleet::load(place)?, args.agent.as_deref())?;
    if known.as_deref() == Some(&agent) {
        return Ok(None);
    }
    let warning = known.map(|known| {
        format!(
            "{agent} goes on with this session, and knows nothing of what was said with {known}"
        )
    });
    let state_dir = Some(place.state_dir.clone());
    // Another agent has a conversation of its own.
    book.take_over(|about| {
        (about.agent, about.state_dir, about.session) = (Some(agent), state_dir, None);
    })
    .map_err(anyhow::Error::from)?;
    Ok(warning)
}

/// Chooses the agent, which must be one that can be talked with.
fn choose(loaded: &Loaded, name: Option<&str>) -> Outcome<String> {
    let able: Vec<&Agent> = loaded.agents.iter().filter(|it| can_talk(it)).collect();
    let names = || able.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let agent = match (name, &able[..]) {
        (Some(name), _) => loaded.find_agent(name).map_err(|error| {
            let hint = format!("heeler chat AGENT, with one of: {}", names());
            Failure::new(Code::NotFound, error).hint(hint)
        })?,
        (None, [one]) => one,
        (None, []) => return Err(nobody()),
        (None, [first, ..]) => {
            let message = format!("whom do you want to talk with: {}?", names());
            let hint = format!("heeler chat {}", first.name);
            return Err(Failure::message(Code::Usage, message).hint(hint));
        }
    };
    match can_talk(agent) {
        true => Ok(agent.name.to_string()),
        false => {
            let message = format!(
                "{} cannot be talked with: its runtime is neither sdk nor scripted",
                agent.name
            );
            Err(Failure::message(Code::Usage, message).hint("heeler trigger asks it once"))
        }
    }
}

fn can_talk(agent: &Agent) -> bool {
    matches!(agent.runtime, Runtime::Sdk | Runtime::Scripted { .. })
}

fn nobody() -> Failure {
    Failure::message(Code::NotFound, "the fleet has no agent of runtime sdk or scripted")
        .hint("heeler init agent adds one")
}

/// Returns what earlier sessions have taught, where nothing was asked yet: it is told with the first turn.
fn learned(shelf: &Shelf, about: &About) -> Option<String> {
    let is_new = about.turns.is_empty();
    is_new.then(|| shelf.learned(about.agent.as_deref(), about.folder.as_deref())).flatten()
}

fn pick(
    shelf: &Shelf,
    terminal: &mut Terminal,
    inputs: &mut chat::Inputs,
    env: &std::collections::BTreeMap<String, String>,
) -> Outcome<Option<String>> {
    let named = shelf.names().map_err(not_opened)?;
    let mut picker = Picker::new(named.iter().map(unread).collect(), chat::theme(env));
    let glances = Glances::start(shelf, named);
    let look = |place| glances.look_first_at(place);
    let is_left = || inputs.is_left();
    Ok(heeler_tui::pick(terminal, &mut picker, &glances.cards, look, is_left, place::now()))
}

/// Lists the sessions where nobody can choose.
fn list(shelf: &Shelf) -> Outcome {
    for one in shelf.list().map_err(not_opened)? {
        let count = one.counted();
        let said = one.fault.or(one.last).unwrap_or_default();
        let said: String = said.lines().next().unwrap_or_default().chars().take(80).collect();
        output::line(format!("{}  {}  {count}  {said}", one.id, one.updated))?;
    }
    Ok(())
}
