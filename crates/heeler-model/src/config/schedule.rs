//! When an agent starts by itself.
//!
//! A schedule is written in one of two ways: herdctl's map of names, or a list with `name` and
//! `trigger`. [`normalise`] turns the second into the first before anything is merged, so that
//! overrides reach both. [`Schedule`] is the checked form.

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::agent::{Agent, AgentKeys};
use super::globs::Globs;
use super::period::Period;
use super::policy::PriorityKey;
use super::reader::{Dialect, Pos, Reader};
use super::session::{SessionKeys, SessionRules};
use super::shape::{KeyInfo, Shape, refuse_both, section};
use super::value::{At, Value, VarName, expected, text_value, word_value};
use super::when::{CronExpr, Zone};
use super::work::WorkSource;
use super::yaml::{Key, Kind, Node};
use crate::webhook::{EventName, FIELDS_MAX, FieldPath, WebhookRules};
use crate::words::words;
use crate::workflow::Cron;
use crate::{Name, SessionMode};

/// The shortest interval of a schedule.
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The most runs that `missed: run_all` makes up for; older occurrences are recorded as skipped.
pub const MISSED_RUNS_MAX: u32 = 100;
/// The longest name of a schedule, in bytes.
const SCHEDULE_NAME_MAX: usize = 128;
/// How long watched files must be at rest, unless `debounce` says otherwise.
const DEBOUNCE_DEFAULT: &str = "2s";

words! {
    /// What becomes of occurrences that were due while nothing ran.
    pub enum Missed ("policy for missed runs") {
        /// They are recorded as skipped.
        Skip = "skip",
        /// One run makes up for all of them.
        RunOnce = "run_once",
        /// Each gets its run, up to [`MISSED_RUNS_MAX`].
        RunAll = "run_all",
    }
}

words! {
    /// What becomes of an occurrence that is due while the last one still runs.
    pub enum Overlap ("policy for overlapping runs") {
        /// It is recorded as skipped.
        Skip = "skip",
        /// It waits.
        Queue = "queue",
    }
}

words! {
    /// What starts a schedule.
    pub enum ScheduleType ("schedule type") {
        /// Time passing.
        Interval = "interval",
        /// The clock.
        Cron = "cron",
        /// Files that change.
        Watch = "watch",
        /// A call from outside.
        Webhook = "webhook",
        /// A message.
        Chat = "chat",
    }
}

word_value!(Missed, Overlap, ScheduleType);

text_value! {
    EventName: "an event", "`issues.opened`", Some(r"^[a-z_]+(\.[a-z_]+)?$"), |event| Json::from(event.to_string());
    FieldPath: "the place of a value", "`issue.title`", Some(r"^[^.]+(\.[^.]+)*$"), |path| Json::from(path.to_string());
}

section! {
    /// What starts the schedule, in the list form.
    pub(crate) struct TriggerKeys ("trigger") {
        /// What starts it; same as the schedule's `type`.
        kind as "type": Option<ScheduleType>,
        /// Time between two starts; same as the schedule's `interval`.
        every alias "interval": Option<Period>,
        /// A cron expression; same as the schedule's `cron`.
        expression alias "cron": Option<CronExpr>,
        /// The files to watch; same as the schedule's `paths`.
        paths: Option<Globs>,
        /// Files not to watch; same as the schedule's `ignore`.
        ignore: Option<Globs>,
        /// How long files must be at rest; same as the schedule's `debounce`.
        debounce: Option<Period>,
    }
}

section! {
    /// One schedule of an agent.
    pub(crate) struct ScheduleKeys ("schedule") {
        /// What starts it: `interval`, `cron`, `watch` or `webhook`. Of the first three it follows
        /// from the key given (`interval`, `cron`, `paths`) if left out. A schedule of type
        /// `webhook` starts when the daemon is called with something for it; calls while its last job
        /// is at work are refused, or wait with `overlap: queue`. `chat` is accepted for herdctl's
        /// sake and starts nothing.
        kind as "type": Option<At<ScheduleType>>,
        /// Time between two starts, such as `5m`, `1h30m` or `2w`.
        interval alias "every": Option<At<Period>>,
        /// A cron expression of five fields, names allowed (`0 9 * * mon-fri`), or `@daily` and
        /// the like.
        cron alias "expression": Option<At<CronExpr>>,
        /// The environment variable with the secret that callers sign with (webhook); `secret_env` of the
        /// fleet's `webhooks` if left out. Without any, only callers that have logged in or come over the
        /// unix socket are heard.
        secret_env alias "secret": Option<At<VarName>>,
        /// The events of GitHub's that start it (webhook): `push`, or with an action
        /// `issues.opened`. Calls of `/hooks/github` go to the schedules that have some.
        events: Option<At<Vec<EventName>>>,
        /// Of events that have a branch, only those of these (webhook): globs such as `release/*`.
        branches: Option<At<Globs>>,
        /// Of events about an issue or pull request, only where it has one of these labels (webhook).
        labels: Option<At<Vec<String>>>,
        /// Only events that these people caused, by login (webhook).
        authors: Option<At<Vec<String>>>,
        /// Events that programs caused start it too (webhook); otherwise an agent's own doings could start
        /// it again.
        bots: Option<At<bool>>,
        /// What of the call the agent is told (webhook): names of your own with the place of the value,
        /// such as `title: issue.title` or `label: issue.labels.0.name`. If left out, it is told all that
        /// was sent; of GitHub's events, what matters.
        fields: Option<At<IndexMap<String, FieldPath>>>,
        /// The files whose change starts it (watch), or of pushes, only those that touch one of these
        /// (webhook): globs such as `src/**/*.rs`, relative to the working
        /// directory. A glob that fits a folder stands for everything in it. `.git`, links to folders and
        /// Heeler's own state are never looked into. What changes while a job of the schedule runs, or
        /// within `debounce` of its end, starts nothing, and so does what changes while no daemon runs or
        /// as one dies: a change starts one job at most.
        paths: Option<At<Globs>>,
        /// Files whose change starts nothing, though `paths` has them.
        ignore: Option<At<Globs>>,
        /// How long the files must be at rest before the job starts: `2s` if left out. Files that
        /// are never at rest start it after ten times as long.
        debounce: Option<At<Period>>,
        /// The list form of `type` with `interval` (here `every`) or `cron` (here `expression`).
        trigger: Option<TriggerKeys>,
        /// What the agent is asked to do; the agent's `default_prompt` if left out.
        prompt: Option<String>,
        /// Set to `false` to keep the schedule from starting by itself; it can still be
        /// triggered by hand.
        enabled: bool = "true",
        /// Session settings for this schedule, over those of the agent.
        session: Option<SessionKeys>,
        /// herdctl's way to say `session: {mode: persistent}`.
        resume_session: bool = "false",
        /// The time zone of `cron`, such as `Europe/Vienna`; the agent's, then the machine's.
        timezone: Option<Zone>,
        /// Start up to this much later, by chance, so that many agents do not start at once.
        jitter: Option<At<Period>>,
        /// Occurrences that were due while nothing ran: `skip` them, `run_once` for all of them
        /// (the default), or `run_all`, at most 100.
        missed: Option<Missed>,
        /// An occurrence that is due while the last one still runs: `skip` it (the default) or
        /// `queue` it.
        overlap: Option<Overlap>,
        /// The time limit of a job of this schedule; the agent's if left out.
        timeout: Option<Period>,
        /// Also write the job's output as text to `jobs/<job>/output.log`.
        output_to_file as "outputToFile": bool = "false",
        /// Where this schedule takes its work from, instead of the agent's `work_source`.
        work_source: Option<WorkSource>,
        /// Its place among jobs that wait, instead of the agent's `priority`.
        priority: Option<PriorityKey>,
    }
}

/// When an agent starts by itself, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name, unique within the agent.
    pub name: String,
    /// What starts it.
    pub trigger: Trigger,
    /// What the agent is asked to do.
    pub prompt: Option<String>,
    /// Whether it starts by itself.
    pub enabled: bool,
    /// How context is kept.
    pub session: SessionRules,
    /// The time limit of a job.
    pub timeout: Option<Period>,
    /// The most by which a start is delayed.
    pub jitter: Option<Period>,
    /// What becomes of missed occurrences.
    pub missed: Missed,
    /// What becomes of overlapping occurrences.
    pub overlap: Overlap,
    /// Whether output is also written as text.
    pub output_to_file: bool,
    /// Where it takes its work from.
    pub work_source: Option<WorkSource>,
    /// Its jobs' place among those that wait: higher ones first.
    pub priority: i32,
    /// The workflow that it starts, instead of asking the agent.
    pub workflow: Option<WorkflowStart>,
}

/// A workflow that a schedule starts.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowStart {
    /// Its name.
    pub workflow: Name,
    /// What it is given.
    pub inputs: Map<String, Json>,
}

/// What starts a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Trigger {
    /// A length of time since the last start.
    Every(Period),
    /// The clock.
    Cron {
        /// The expression.
        expr: CronExpr,
        /// Its zone; `None` is the machine's.
        zone: Option<Zone>,
    },
    /// Files that change.
    Watch {
        /// Which, relative to the working directory.
        paths: Globs,
        /// Which of them do not count.
        ignore: Globs,
        /// How long they must be at rest.
        debounce: Period,
    },
    /// A call from outside.
    Webhook(Box<WebhookRules>),
    /// A message; nothing listens yet.
    Chat,
}

/// The schedules of an agent as written: by name, or as a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedules(pub(crate) IndexMap<String, At<ScheduleKeys>>);

impl Value for Schedules {
    fn shape() -> Shape {
        let mut item = ScheduleKeys::section();
        item.name = "schedule_item";
        item.keys.insert(
            0,
            KeyInfo {
                name: "name",
                about: " The name of the schedule, unique within the agent.\n",
                aliases: &[],
                shape: Name::shape(),
                default: None,
                required: true,
            },
        );
        let map = Shape::Map(Box::new(ScheduleKeys::shape()));
        Shape::OneOf(vec![map, Shape::List(Box::new(Shape::Section(item)))])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Schedules> {
        if !matches!(node.kind, Kind::Map(_)) {
            return expected(reader, node, "a map of schedules or a list");
        }
        let mut schedules = IndexMap::new();
        for (key, value) in node.entries().iter().filter(|(_, value)| !value.is_null()) {
            let named = check_name(key, reader);
            if let Some(keys) = At::<ScheduleKeys>::read(value, reader).filter(|_| named) {
                schedules.insert(key.text.clone(), keys);
            }
        }
        Some(Schedules(schedules))
    }

    fn absent() -> Option<Schedules> {
        Some(Schedules(IndexMap::new()))
    }

    fn show(&self) -> serde_json::Value {
        self.0.show()
    }
}

/// herdctl lets a schedule have any name; ours are words that fit anywhere.
fn check_name(key: &Key, reader: &mut Reader) -> bool {
    let fits = match reader.dialect {
        Dialect::Heeler => key.text.parse::<Name>().map(|_| ()).map_err(|error| error.reason),
        Dialect::Herdctl => match key.text.as_str() {
            "" => Err("it is empty"),
            name if name.len() > SCHEDULE_NAME_MAX => Err("it is longer than 128 characters"),
            name if name.chars().any(char::is_control) => Err("it has control characters"),
            _ => Ok(()),
        },
    };
    if let Err(reason) = fits {
        let message = format!("`{}` is no name for a schedule: {reason}", key.text);
        reader.error(key.at, message).expected("expected a name such as `nightly`");
    }
    fits.is_ok()
}

/// Turns the list form into the map form and takes `trigger` apart.
pub(crate) fn normalise(node: &mut Node, reader: &mut Reader) {
    if let Kind::List(items) = &mut node.kind {
        let items = std::mem::take(items);
        let named = items.into_iter().filter_map(|item| name_item(item, reader)).collect();
        node.kind = Kind::Map(refuse_twins(named, reader));
    }
    if let Kind::Map(entries) = &mut node.kind {
        entries.iter_mut().for_each(|(_, schedule)| flatten_trigger(schedule, reader));
    }
}

fn name_item(mut item: Node, reader: &mut Reader) -> Option<(Key, Node)> {
    let Kind::Map(entries) = &mut item.kind else {
        return expected(reader, &item, "a schedule with a `name`");
    };
    let named = entries.iter().position(|(key, _)| key.text == "name").map(|at| entries.remove(at));
    match named {
        Some((_, Node { at, kind: Kind::Scalar(scalar) })) => {
            Some((Key { text: scalar.text, at }, item))
        }
        _ => {
            let message = "the key `name` is missing".to_owned();
            reader.error(item.at, message).expected("each schedule of a list has a `name`");
            None
        }
    }
}

fn refuse_twins(named: Vec<(Key, Node)>, reader: &mut Reader) -> Vec<(Key, Node)> {
    let mut unique: Vec<(Key, Node)> = Vec::new();
    for (key, schedule) in named {
        if unique.iter().any(|(known, _)| known.text == key.text) {
            let message = format!("there are two schedules `{}`", key.text);
            reader.error(key.at, message).expected("expected another name");
        } else {
            unique.push((key, schedule));
        }
    }
    unique
}

/// Keys of `trigger`, and what they are called in the schedule itself.
const TRIGGER_KEYS: [(&str, &str); 6] = [
    ("type", "type"),
    ("every", "interval"),
    ("expression", "cron"),
    ("paths", "paths"),
    ("ignore", "ignore"),
    ("debounce", "debounce"),
];

/// Moves the keys of `trigger` up to the schedule. What is not known stays, to be reported.
fn flatten_trigger(schedule: &mut Node, reader: &mut Reader) {
    let Kind::Map(entries) = &mut schedule.kind else { return };
    let Some(at) = entries.iter().position(|(key, _)| key.text == "trigger") else { return };
    let Kind::Map(trigger) = &mut entries[at].1.kind else { return };
    let moved: Vec<(Key, Node)> = trigger
        .extract_if(.., |(key, _)| TRIGGER_KEYS.iter().any(|(name, _)| *name == key.text))
        .collect();
    if trigger.is_empty() {
        entries.remove(at);
    }
    for (mut key, value) in moved {
        let names = TRIGGER_KEYS.iter().find(|(name, _)| *name == key.text);
        let (_, name) = names.expect("only keys of the list are moved");
        if entries.iter().any(|(known, _)| known.text == *name) {
            refuse_both(key.at, &format!("trigger.{}", key.text), name, reader);
            continue;
        }
        key.text = (*name).to_owned();
        entries.push((key, value));
    }
}

impl Schedule {
    /// Checks one schedule against its agent, whose settings it inherits.
    pub(crate) fn check(
        name: &str,
        keys: &At<ScheduleKeys>,
        agent: &AgentKeys,
        reader: &mut Reader,
    ) -> Option<Schedule> {
        let trigger = check_trigger(name, keys, agent, reader);
        let keys = &keys.value;
        check_jitter(keys, agent, reader);
        let session = keys.session.as_ref().unwrap_or(&agent.session);
        let mode = match keys.resume_session && keys.session.is_none() {
            true => SessionMode::Persistent,
            false => session.mode,
        };
        let inherited = agent.timeout.or(session.job_timeout(mode));
        Some(Schedule {
            name: name.to_owned(),
            trigger: trigger?,
            prompt: keys.prompt.clone().or_else(|| agent.default_prompt.clone()),
            enabled: keys.enabled,
            session: session.rules(mode),
            timeout: keys.timeout.or(inherited),
            jitter: keys.jitter.as_ref().map(|jitter| jitter.value).or(agent.jitter),
            missed: keys.missed.or(agent.missed).unwrap_or(Missed::RunOnce),
            overlap: keys.overlap.or(agent.overlap).unwrap_or(Overlap::Skip),
            output_to_file: keys.output_to_file,
            work_source: keys.work_source.clone().or_else(|| agent.work_source.clone()),
            priority: keys.priority.unwrap_or(agent.priority).get(),
            workflow: None,
        })
    }

    /// Makes the schedule of a cron file: it is one of the agent that its workflow is done by.
    pub(crate) fn of_cron(cron: &Cron, agent: &Agent) -> Schedule {
        Schedule {
            name: cron.name.to_string(),
            trigger: Trigger::Cron { expr: cron.schedule.clone(), zone: cron.timezone.clone() },
            prompt: None,
            enabled: cron.enabled,
            session: agent.session.clone(),
            timeout: None,
            jitter: None,
            missed: Missed::RunOnce,
            overlap: Overlap::Skip,
            output_to_file: false,
            work_source: None,
            priority: agent.priority,
            workflow: Some(WorkflowStart {
                workflow: cron.workflow.clone(),
                inputs: cron.context.clone(),
            }),
        }
    }
}

fn check_trigger(
    name: &str,
    keys: &At<ScheduleKeys>,
    agent: &AgentKeys,
    reader: &mut Reader,
) -> Option<Trigger> {
    let kind = trigger_type(name, keys, reader)?;
    warn_unused(kind, &keys.value, reader);
    let ScheduleKeys { kind: written, interval, cron, paths, ignore, debounce, .. } = &keys.value;
    let at = written.as_ref().map_or(keys.at, |written| written.at);
    match (kind, interval, cron, paths) {
        (ScheduleType::Interval, Some(interval), ..) => check_interval(interval, reader),
        (ScheduleType::Cron, _, Some(cron), _) => {
            let zone = keys.value.timezone.clone().or_else(|| agent.timezone.clone());
            Some(Trigger::Cron { expr: cron.value.clone(), zone })
        }
        (ScheduleType::Watch, .., Some(paths)) if !paths.value.patterns().is_empty() => {
            let rest = || DEBOUNCE_DEFAULT.parse().expect("two seconds are a period");
            Some(Trigger::Watch {
                paths: paths.value.clone(),
                ignore: ignore.as_ref().map(|ignore| ignore.value.clone()).unwrap_or_default(),
                debounce: debounce.as_ref().map_or_else(rest, |debounce| debounce.value),
            })
        }
        (ScheduleType::Webhook, ..) => Some(check_webhook(&keys.value, reader)),
        (ScheduleType::Chat, ..) => {
            let message = format!("a schedule of type `{kind}` starts nothing yet");
            reader.warn(at, message).expected("accepted, not used");
            Some(Trigger::Chat)
        }
        (ScheduleType::Interval | ScheduleType::Cron | ScheduleType::Watch, ..) => {
            let key = match kind {
                ScheduleType::Watch => "paths",
                kind => kind.as_str(),
            };
            let message = format!("a schedule of type `{kind}` needs the key `{key}`");
            reader.error(at, message).expected(format!("`{key}` is missing"));
            None
        }
    }
}

fn check_webhook(keys: &ScheduleKeys, reader: &mut Reader) -> Trigger {
    fn value<T: Clone + Default>(key: Option<&At<T>>) -> T {
        key.map(|key| key.value.clone()).unwrap_or_default()
    }
    if let Some(fields) = keys.fields.as_ref().filter(|fields| fields.value.len() > FIELDS_MAX) {
        let message = format!("{} fields are more than {FIELDS_MAX}", fields.value.len());
        reader.error(fields.at, message).expected("fewer fields");
    }
    let globs = |key: &Option<At<Globs>>| {
        key.as_ref().map(|globs| globs.value.clone()).filter(|globs| !globs.patterns().is_empty())
    };
    Trigger::Webhook(Box::new(WebhookRules {
        secret_env: keys.secret_env.as_ref().map(|name| name.value.clone()),
        events: value(keys.events.as_ref()),
        branches: globs(&keys.branches),
        paths: globs(&keys.paths),
        labels: value(keys.labels.as_ref()),
        authors: value(keys.authors.as_ref()),
        bots: value(keys.bots.as_ref()),
        fields: value(keys.fields.as_ref()),
    }))
}

/// Warns of keys of another type.
fn warn_unused(kind: ScheduleType, keys: &ScheduleKeys, reader: &mut Reader) {
    let ScheduleKeys { interval, cron, paths, ignore, debounce, .. } = keys;
    let ScheduleKeys { secret_env, events, branches, labels, authors, bots, fields, .. } = keys;
    let paths = paths.as_ref().filter(|_| kind != ScheduleType::Webhook);
    let written = [
        (ScheduleType::Interval, "interval", interval.as_ref().map(|key| key.at)),
        (ScheduleType::Cron, "cron", cron.as_ref().map(|key| key.at)),
        (ScheduleType::Watch, "paths", paths.map(|key| key.at)),
        (ScheduleType::Webhook, "secret_env", secret_env.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "events", events.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "branches", branches.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "labels", labels.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "authors", authors.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "bots", bots.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "fields", fields.as_ref().map(|key| key.at)),
        (ScheduleType::Watch, "ignore", ignore.as_ref().map(|key| key.at)),
        (ScheduleType::Watch, "debounce", debounce.as_ref().map(|key| key.at)),
    ];
    for (_, key, at) in written.into_iter().filter(|(of, ..)| *of != kind) {
        let Some(at) = at else { continue };
        let message = format!("`{key}` has no effect: the schedule's type is `{kind}`");
        reader.warn(at, message).expected("ignored");
    }
}

/// Returns the type as written, or as the keys imply.
fn trigger_type(name: &str, keys: &At<ScheduleKeys>, reader: &mut Reader) -> Option<ScheduleType> {
    let ScheduleKeys { kind, interval, cron, paths, .. } = &keys.value;
    if let Some(kind) = kind {
        return Some(kind.value);
    }
    let implied: Vec<(ScheduleType, &str, Pos)> = [
        interval.as_ref().map(|key| (ScheduleType::Interval, "interval", key.at)),
        cron.as_ref().map(|key| (ScheduleType::Cron, "cron", key.at)),
        paths.as_ref().map(|key| (ScheduleType::Watch, "paths", key.at)),
    ]
    .into_iter()
    .flatten()
    .collect();
    match implied.as_slice() {
        [(kind, ..)] => Some(*kind),
        [(_, first, _), (_, second, at), ..] => {
            let message = format!("the schedule `{name}` has both `{first}` and `{second}`");
            reader.error(*at, message).expected("keep one, or say which with `type`");
            None
        }
        [] => {
            let message = format!("nothing starts the schedule `{name}`");
            reader.error(keys.at, message).expected("`interval`, `cron` or `paths` belongs here");
            None
        }
    }
}

fn check_interval(interval: &At<Period>, reader: &mut Reader) -> Option<Trigger> {
    if interval.value.get() < INTERVAL_MIN {
        let message = format!("the interval {} is shorter than a second", interval.value);
        reader.error(interval.at, message).expected("at least `1s`");
        return None;
    }
    Some(Trigger::Every(interval.value))
}

fn check_jitter(keys: &ScheduleKeys, agent: &AgentKeys, reader: &mut Reader) {
    let Some(interval) = &keys.interval else { return };
    let own = keys.jitter.as_ref().map(|jitter| (jitter.value, jitter.at));
    let Some((jitter, at)) = own.or(agent.jitter.map(|jitter| (jitter, interval.at))) else {
        return;
    };
    if jitter >= interval.value {
        let message =
            format!("the jitter {jitter} is not shorter than the interval {}", interval.value);
        reader.error(at, message).expected("the jitter must be shorter");
    }
}
