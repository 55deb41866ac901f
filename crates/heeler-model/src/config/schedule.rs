//! When an agent starts by itself.
//!
//! A schedule is written in one of two ways: herdctl's map of names, or a list with `name` and
//! `trigger`. [`normalize_schedules`] turns the second into the first before anything is merged, so that
//! overrides reach both. [`ScheduleConfig`] is the checked form.

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::agent::{AgentConfig, AgentKeys};
use super::cron::{ConfigTimeZone, CronExpr};
use super::duration::ConfigDuration;
use super::globs::GlobList;
use super::policy::PriorityKey;
use super::reader::{ConfigDialect, ConfigReader, SourceSpan};
use super::session::{SessionKeys, SessionRules};
use super::shape::{KeyInfo, ValueShape, reject_alias_conflict, section};
use super::value::{ConfigValue, SpannedValue, VarName, report_expected, text_value, word_value};
use super::work_source::WorkSource;
use super::yaml::{YamlKey, YamlKind, YamlNode};
use crate::webhook::{FIELDS_MAX, PayloadFieldPath, WebhookEventName, WebhookRules};
use crate::words::words;
use crate::workflow::WorkflowCron;
use crate::{LocalName, SessionMode};

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
    pub enum MissedRunPolicy ("policy for missed runs") {
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
    pub enum OverlapPolicy ("policy for overlapping runs") {
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

word_value!(MissedRunPolicy, OverlapPolicy, ScheduleType);

text_value! {
    WebhookEventName: "an event", "`issues.opened`", Some(r"^[a-z_]+(\.[a-z_]+)?$"), |event| Json::from(event.to_string());
    PayloadFieldPath: "the place of a value", "`issue.title`", Some(r"^[^.]+(\.[^.]+)*$"), |path| Json::from(path.to_string());
}

section! {
    /// What starts the schedule, in the list form.
    pub(crate) struct TriggerKeys ("trigger") {
        /// What starts it; same as the schedule's `type`.
        kind as "type": Option<ScheduleType>,
        /// Time between two starts; same as the schedule's `interval`.
        every alias "interval": Option<ConfigDuration>,
        /// A cron expression; same as the schedule's `cron`.
        expression alias "cron": Option<CronExpr>,
        /// The files to watch; same as the schedule's `paths`.
        paths: Option<GlobList>,
        /// Files not to watch; same as the schedule's `ignore`.
        ignore: Option<GlobList>,
        /// How long files must be at rest; same as the schedule's `debounce`.
        debounce: Option<ConfigDuration>,
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
        kind as "type": Option<SpannedValue<ScheduleType>>,
        /// Time between two starts, such as `5m`, `1h30m` or `2w`.
        interval alias "every": Option<SpannedValue<ConfigDuration>>,
        /// A cron expression of five fields, names allowed (`0 9 * * mon-fri`), or `@daily` and
        /// the like.
        cron alias "expression": Option<SpannedValue<CronExpr>>,
        /// The environment variable with the secret that callers sign with (webhook); `secret_env` of the
        /// fleet's `webhooks` if left out. Without any, only callers that have logged in or come over the
        /// unix socket are heard.
        secret_env alias "secret": Option<SpannedValue<VarName>>,
        /// The events of GitHub's that start it (webhook): `push`, or with an action
        /// `issues.opened`. Calls of `/hooks/github` go to the schedules that have some.
        events: Option<SpannedValue<Vec<WebhookEventName>>>,
        /// Of events that have a branch, only those of these (webhook): globs such as `release/*`.
        branches: Option<SpannedValue<GlobList>>,
        /// Of events about an issue or pull request, only where it has one of these labels (webhook).
        labels: Option<SpannedValue<Vec<String>>>,
        /// Only events that these people caused, by login (webhook).
        authors: Option<SpannedValue<Vec<String>>>,
        /// Events that programs caused start it too (webhook); otherwise an agent's own doings could start
        /// it again.
        bots: Option<SpannedValue<bool>>,
        /// What of the call the agent is told (webhook): names of your own with the place of the value,
        /// such as `title: issue.title` or `label: issue.labels.0.name`. If left out, it is told all that
        /// was sent; of GitHub's events, what matters.
        fields: Option<SpannedValue<IndexMap<String, PayloadFieldPath>>>,
        /// The files whose change starts it (watch), or of pushes, only those that touch one of these
        /// (webhook): globs such as `src/**/*.rs`, relative to the working
        /// directory. A glob that fits a folder stands for everything in it. `.git`, links to folders and
        /// Heeler's own state are never looked into. What changes while a job of the schedule runs, or
        /// within `debounce` of its end, starts nothing, and so does what changes while no daemon runs or
        /// as one dies: a change starts one job at most.
        paths: Option<SpannedValue<GlobList>>,
        /// Files whose change starts nothing, though `paths` has them.
        ignore: Option<SpannedValue<GlobList>>,
        /// How long the files must be at rest before the job starts: `2s` if left out. Files that
        /// are never at rest start it after ten times as long.
        debounce: Option<SpannedValue<ConfigDuration>>,
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
        timezone: Option<ConfigTimeZone>,
        /// Start up to this much later, by chance, so that many agents do not start at once.
        jitter: Option<SpannedValue<ConfigDuration>>,
        /// Occurrences that were due while nothing ran: `skip` them, `run_once` for all of them
        /// (the default), or `run_all`, at most 100.
        missed: Option<MissedRunPolicy>,
        /// An occurrence that is due while the last one still runs: `skip` it (the default) or
        /// `queue` it.
        overlap: Option<OverlapPolicy>,
        /// The time limit of a job of this schedule; the agent's if left out.
        timeout: Option<ConfigDuration>,
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
pub struct ScheduleConfig {
    /// Its name, unique within the agent.
    pub name: String,
    /// What starts it.
    pub trigger: ScheduleTrigger,
    /// What the agent is asked to do.
    pub prompt: Option<String>,
    /// Whether it starts by itself.
    pub enabled: bool,
    /// How context is kept.
    pub session: SessionRules,
    /// The time limit of a job.
    pub timeout: Option<ConfigDuration>,
    /// The most by which a start is delayed.
    pub jitter: Option<ConfigDuration>,
    /// What becomes of missed occurrences.
    pub missed: MissedRunPolicy,
    /// What becomes of overlapping occurrences.
    pub overlap: OverlapPolicy,
    /// Whether output is also written as text.
    pub output_to_file: bool,
    /// Where it takes its work from.
    pub work_source: Option<WorkSource>,
    /// Its jobs' place among those that wait: higher ones first.
    pub priority: i32,
    /// The workflow that it starts, instead of asking the agent.
    pub workflow: Option<ScheduledWorkflow>,
}

/// A workflow that a schedule starts.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledWorkflow {
    /// Its name.
    pub workflow: LocalName,
    /// What it is given.
    pub inputs: Map<String, Json>,
}

/// What starts a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleTrigger {
    /// A length of time since the last start.
    Interval(ConfigDuration),
    /// The clock.
    Cron {
        /// The expression.
        expr: CronExpr,
        /// Its zone; `None` is the machine's.
        zone: Option<ConfigTimeZone>,
    },
    /// Files that change.
    Watch {
        /// Which, relative to the working directory.
        paths: GlobList,
        /// Which of them do not count.
        ignore: GlobList,
        /// How long they must be at rest.
        debounce: ConfigDuration,
    },
    /// A call from outside.
    Webhook(Box<WebhookRules>),
    /// A message; nothing listens yet.
    Chat,
}

/// The schedules of an agent as written: by name, or as a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SchedulesKeys(pub(crate) IndexMap<String, SpannedValue<ScheduleKeys>>);

impl ConfigValue for SchedulesKeys {
    fn shape() -> ValueShape {
        let mut item = ScheduleKeys::section();
        item.name = "schedule_item";
        item.keys.insert(
            0,
            KeyInfo {
                name: "name",
                about: " The name of the schedule, unique within the agent.\n",
                aliases: &[],
                shape: LocalName::shape(),
                default: None,
                required: true,
            },
        );
        let map = ValueShape::Map(Box::new(ScheduleKeys::shape()));
        ValueShape::OneOf(vec![map, ValueShape::List(Box::new(ValueShape::Section(item)))])
    }

    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<SchedulesKeys> {
        if !matches!(node.kind, YamlKind::Map(_)) {
            return report_expected(reader, node, "a map of schedules or a list");
        }
        let mut schedules = IndexMap::new();
        for (key, value) in node.entries().iter().filter(|(_, value)| !value.is_null()) {
            let named = check_schedule_name(key, reader);
            if let Some(keys) = SpannedValue::<ScheduleKeys>::read(value, reader).filter(|_| named)
            {
                schedules.insert(key.text.clone(), keys);
            }
        }
        Some(SchedulesKeys(schedules))
    }

    fn absent() -> Option<SchedulesKeys> {
        Some(SchedulesKeys(IndexMap::new()))
    }

    fn show(&self) -> serde_json::Value {
        self.0.show()
    }
}

/// herdctl lets a schedule have any name; ours are words that fit anywhere.
fn check_schedule_name(key: &YamlKey, reader: &mut ConfigReader) -> bool {
    let fits = match reader.dialect {
        ConfigDialect::Heeler => {
            key.text.parse::<LocalName>().map(|_| ()).map_err(|error| error.reason)
        }
        ConfigDialect::Herdctl => match key.text.as_str() {
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
pub(crate) fn normalize_schedules(node: &mut YamlNode, reader: &mut ConfigReader) {
    if let YamlKind::List(items) = &mut node.kind {
        let items = std::mem::take(items);
        let named = items.into_iter().filter_map(|item| take_item_name(item, reader)).collect();
        node.kind = YamlKind::Map(reject_duplicates(named, reader));
    }
    if let YamlKind::Map(entries) = &mut node.kind {
        entries.iter_mut().for_each(|(_, schedule)| flatten_trigger(schedule, reader));
    }
}

fn take_item_name(mut item: YamlNode, reader: &mut ConfigReader) -> Option<(YamlKey, YamlNode)> {
    let YamlKind::Map(entries) = &mut item.kind else {
        return report_expected(reader, &item, "a schedule with a `name`");
    };
    let named = entries.iter().position(|(key, _)| key.text == "name").map(|at| entries.remove(at));
    match named {
        Some((_, YamlNode { at, kind: YamlKind::Scalar(scalar) })) => {
            Some((YamlKey { text: scalar.text, at }, item))
        }
        _ => {
            let message = "the key `name` is missing".to_owned();
            reader.error(item.at, message).expected("each schedule of a list has a `name`");
            None
        }
    }
}

fn reject_duplicates(
    named: Vec<(YamlKey, YamlNode)>,
    reader: &mut ConfigReader,
) -> Vec<(YamlKey, YamlNode)> {
    let mut unique: Vec<(YamlKey, YamlNode)> = Vec::new();
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
fn flatten_trigger(schedule: &mut YamlNode, reader: &mut ConfigReader) {
    let YamlKind::Map(entries) = &mut schedule.kind else { return };
    let Some(at) = entries.iter().position(|(key, _)| key.text == "trigger") else { return };
    let YamlKind::Map(trigger) = &mut entries[at].1.kind else { return };
    let moved: Vec<(YamlKey, YamlNode)> = trigger
        .extract_if(.., |(key, _)| TRIGGER_KEYS.iter().any(|(name, _)| *name == key.text))
        .collect();
    if trigger.is_empty() {
        entries.remove(at);
    }
    for (mut key, value) in moved {
        let names = TRIGGER_KEYS.iter().find(|(name, _)| *name == key.text);
        let (_, name) = names.expect("only keys of the list are moved");
        if entries.iter().any(|(known, _)| known.text == *name) {
            reject_alias_conflict(key.at, &format!("trigger.{}", key.text), name, reader);
            continue;
        }
        key.text = (*name).to_owned();
        entries.push((key, value));
    }
}

impl ScheduleConfig {
    /// Checks one schedule against its agent, whose settings it inherits.
    pub(crate) fn check(
        name: &str,
        keys: &SpannedValue<ScheduleKeys>,
        agent: &AgentKeys,
        reader: &mut ConfigReader,
    ) -> Option<ScheduleConfig> {
        let trigger = check_trigger(name, keys, agent, reader);
        let keys = &keys.value;
        check_jitter(keys, agent, reader);
        let session = keys.session.as_ref().unwrap_or(&agent.session);
        let mode = match keys.resume_session && keys.session.is_none() {
            true => SessionMode::Persistent,
            false => session.mode,
        };
        let inherited = agent.timeout.or(session.job_timeout(mode));
        Some(ScheduleConfig {
            name: name.to_owned(),
            trigger: trigger?,
            prompt: keys.prompt.clone().or_else(|| agent.default_prompt.clone()),
            enabled: keys.enabled,
            session: session.to_rules(mode),
            timeout: keys.timeout.or(inherited),
            jitter: keys.jitter.as_ref().map(|jitter| jitter.value).or(agent.jitter),
            missed: keys.missed.or(agent.missed).unwrap_or(MissedRunPolicy::RunOnce),
            overlap: keys.overlap.or(agent.overlap).unwrap_or(OverlapPolicy::Skip),
            output_to_file: keys.output_to_file,
            work_source: keys.work_source.clone().or_else(|| agent.work_source.clone()),
            priority: keys.priority.unwrap_or(agent.priority).get(),
            workflow: None,
        })
    }

    /// Makes the schedule of a cron file: it is one of the agent that its workflow is done by.
    pub(crate) fn from_cron(cron: &WorkflowCron, agent: &AgentConfig) -> ScheduleConfig {
        ScheduleConfig {
            name: cron.name.to_string(),
            trigger: ScheduleTrigger::Cron {
                expr: cron.schedule.clone(),
                zone: cron.timezone.clone(),
            },
            prompt: None,
            enabled: cron.enabled,
            session: agent.session.clone(),
            timeout: None,
            jitter: None,
            missed: MissedRunPolicy::RunOnce,
            overlap: OverlapPolicy::Skip,
            output_to_file: false,
            work_source: None,
            priority: agent.priority,
            workflow: Some(ScheduledWorkflow {
                workflow: cron.workflow.clone(),
                inputs: cron.context.clone(),
            }),
        }
    }
}

fn check_trigger(
    name: &str,
    keys: &SpannedValue<ScheduleKeys>,
    agent: &AgentKeys,
    reader: &mut ConfigReader,
) -> Option<ScheduleTrigger> {
    let kind = trigger_type(name, keys, reader)?;
    warn_unused(kind, &keys.value, reader);
    let ScheduleKeys { kind: written, interval, cron, paths, ignore, debounce, .. } = &keys.value;
    let at = written.as_ref().map_or(keys.at, |written| written.at);
    match (kind, interval, cron, paths) {
        (ScheduleType::Interval, Some(interval), ..) => check_interval(interval, reader),
        (ScheduleType::Cron, _, Some(cron), _) => {
            let zone = keys.value.timezone.clone().or_else(|| agent.timezone.clone());
            Some(ScheduleTrigger::Cron { expr: cron.value.clone(), zone })
        }
        (ScheduleType::Watch, .., Some(paths)) if !paths.value.patterns().is_empty() => {
            let rest = || DEBOUNCE_DEFAULT.parse().expect("two seconds are a period");
            Some(ScheduleTrigger::Watch {
                paths: paths.value.clone(),
                ignore: ignore.as_ref().map(|ignore| ignore.value.clone()).unwrap_or_default(),
                debounce: debounce.as_ref().map_or_else(rest, |debounce| debounce.value),
            })
        }
        (ScheduleType::Webhook, ..) => Some(check_webhook(&keys.value, reader)),
        (ScheduleType::Chat, ..) => {
            let message = format!("a schedule of type `{kind}` starts nothing yet");
            reader.warn(at, message).expected("accepted, not used");
            Some(ScheduleTrigger::Chat)
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

fn check_webhook(keys: &ScheduleKeys, reader: &mut ConfigReader) -> ScheduleTrigger {
    fn value<T: Clone + Default>(key: Option<&SpannedValue<T>>) -> T {
        key.map(|key| key.value.clone()).unwrap_or_default()
    }
    if let Some(fields) = keys.fields.as_ref().filter(|fields| fields.value.len() > FIELDS_MAX) {
        let message = format!("{} fields are more than {FIELDS_MAX}", fields.value.len());
        reader.error(fields.at, message).expected("fewer fields");
    }
    let globs = |key: &Option<SpannedValue<GlobList>>| {
        key.as_ref().map(|globs| globs.value.clone()).filter(|globs| !globs.patterns().is_empty())
    };
    ScheduleTrigger::Webhook(Box::new(WebhookRules {
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
fn warn_unused(kind: ScheduleType, keys: &ScheduleKeys, reader: &mut ConfigReader) {
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
fn trigger_type(
    name: &str,
    keys: &SpannedValue<ScheduleKeys>,
    reader: &mut ConfigReader,
) -> Option<ScheduleType> {
    let ScheduleKeys { kind, interval, cron, paths, .. } = &keys.value;
    if let Some(kind) = kind {
        return Some(kind.value);
    }
    let implied: Vec<(ScheduleType, &str, SourceSpan)> = [
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

fn check_interval(
    interval: &SpannedValue<ConfigDuration>,
    reader: &mut ConfigReader,
) -> Option<ScheduleTrigger> {
    if interval.value.get() < INTERVAL_MIN {
        let message = format!("the interval {} is shorter than a second", interval.value);
        reader.error(interval.at, message).expected("at least `1s`");
        return None;
    }
    Some(ScheduleTrigger::Interval(interval.value))
}

fn check_jitter(keys: &ScheduleKeys, agent: &AgentKeys, reader: &mut ConfigReader) {
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
