//! Schedules of an agent.
//!
//! A schedule is written in one of two forms: herdctl's map by name, or a list with `name` and
//! `trigger`. [`normalize_schedules`] converts the second into the first before anything is merged,
//! so that overrides apply to both. [`ScheduleConfig`] is the checked form.

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::cron::{ConfigTimeZone, CronExpr};
use crate::discovery::CronFanOut;
use crate::duration::ConfigDuration;
use crate::github_event::AuthorAssociation;
use crate::globs::GlobList;
use crate::policy::PriorityKey;
use crate::reader::{ConfigDialect, ConfigReader, SourceSpan};
use crate::session::{SessionKeys, SessionRules};
use crate::shape::{KeyInfo, ValueShape, reject_alias_conflict, section};
use crate::value::{ConfigValue, SpannedValue, VarName, report_expected, text_value, word_value};
use crate::webhook::{PayloadFieldPath, WebhookEventName, WebhookRules};
use crate::webhook_schedule::check_webhook;
use crate::words::words;
use crate::work_source::{WorkSource, check_work_source};
use crate::yaml::{YamlKey, YamlKind, YamlNode};
use crate::{LocalName, SessionMode};

/// Shortest interval of a schedule.
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum number of jobs that `missed: run_all` creates; older due times are recorded as skipped.
pub const MISSED_RUNS_MAX: u32 = 100;
/// Longest name of a schedule, in bytes.
const SCHEDULE_NAME_MAX: usize = 128;
/// Time without changes before watched files start a job, if `debounce` is not set.
const DEBOUNCE_DEFAULT: &str = "2s";

words! {
    /// Handling of due times that passed while no daemon was running.
    pub enum MissedRunPolicy ("policy for missed runs") {
        /// Record them as skipped.
        Skip = "skip",
        /// Start one job for all of them.
        RunOnce = "run_once",
        /// Start one job for each, up to [`MISSED_RUNS_MAX`].
        RunAll = "run_all",
    }
}

words! {
    /// Handling of a due time while the previous job is still active.
    pub enum OverlapPolicy ("policy for overlapping runs") {
        /// Record it as skipped.
        Skip = "skip",
        /// Queue the job.
        Queue = "queue",
    }
}

words! {
    /// Event that starts a schedule.
    pub enum ScheduleType ("schedule type") {
        /// A fixed time between starts.
        Interval = "interval",
        /// A cron expression.
        Cron = "cron",
        /// Changes of files.
        Watch = "watch",
        /// An HTTP request from outside.
        Webhook = "webhook",
        /// A chat message.
        Chat = "chat",
    }
}

word_value!(MissedRunPolicy, OverlapPolicy, ScheduleType);

text_value! {
    WebhookEventName: "an event", "`issues.opened`", Some(r"^[a-z_]+(\.[a-z_]+)?$"), |event| Json::from(event.to_string());
    PayloadFieldPath: "the place of a value", "`issue.title`", Some(r"^[^.]+(\.[^.]+)*$"), |path| Json::from(path.to_string());
}

section! {
    /// Trigger of a schedule in the list form.
    pub(crate) struct TriggerKeys ("trigger") {
        /// Type of trigger; same as the schedule's `type`.
        kind as "type": Option<ScheduleType>,
        /// Time between two starts; same as the schedule's `interval`.
        every alias "interval": Option<ConfigDuration>,
        /// Cron expression; same as the schedule's `cron`.
        expression alias "cron": Option<CronExpr>,
        /// Files to watch; same as the schedule's `paths`.
        paths: Option<GlobList>,
        /// Files not to watch; same as the schedule's `ignore`.
        ignore: Option<GlobList>,
        /// Time without changes before the job starts; same as the schedule's `debounce`.
        debounce: Option<ConfigDuration>,
    }
}

section! {
    /// One schedule of an agent.
    pub(crate) struct ScheduleKeys ("schedule") {
        /// Type of trigger: `interval`, `cron`, `watch` or `webhook`. The first three are implied
        /// by their key (`interval`, `cron`, `paths`) and may be left out. A schedule of type
        /// `webhook` starts when the daemon receives a request for it. A request that arrives while
        /// its previous job is active is rejected, or queued with `overlap: queue`. `chat` is
        /// accepted for compatibility with herdctl and starts nothing.
        kind as "type": Option<SpannedValue<ScheduleType>>,
        /// Time between two starts, such as `5m`, `1h30m` or `2w`.
        interval alias "every": Option<SpannedValue<ConfigDuration>>,
        /// Cron expression of five fields, in which names are allowed (`0 9 * * mon-fri`), or a
        /// shorthand such as `@daily`.
        cron alias "expression": Option<SpannedValue<CronExpr>>,
        /// Environment variable that holds the secret with which callers sign requests (webhook).
        /// Defaults to `secret_env` of the fleet's `webhooks`. Without a secret, only authenticated
        /// callers and callers on the Unix socket are accepted.
        secret_env alias "secret": Option<SpannedValue<VarName>>,
        /// GitHub events that start the schedule (webhook): `push`, or with an action such as
        /// `issues.opened`. Requests to `/hooks/github` are delivered to the schedules that list
        /// events.
        events: Option<SpannedValue<Vec<WebhookEventName>>>,
        /// For events with a branch, accept only these branches (webhook): globs such as
        /// `release/*`.
        branches: Option<SpannedValue<GlobList>>,
        /// For events about an issue or pull request, accept only those with one of these labels
        /// (webhook).
        labels: Option<SpannedValue<Vec<String>>>,
        /// Accept only events caused by these users, by login name (webhook).
        authors: Option<SpannedValue<Vec<String>>>,
        /// Accept only events whose author has one of these relations to the repository (webhook): `OWNER`, `MEMBER`,
        /// `COLLABORATOR`, `CONTRIBUTOR`, or `ANY` for everyone. Defaults to the first three, because a text of a
        /// stranger can manipulate an agent.
        associations: Option<SpannedValue<Vec<AuthorAssociation>>>,
        /// Accept only events whose text mentions this account (webhook), such as `heeler-bot` for `@heeler-bot`.
        mention: Option<SpannedValue<String>>,
        /// Workflow that a request starts, instead of a job of the agent (webhook). Its inputs are the `fields`; by
        /// default those of a GitHub event, or `payload`.
        workflow: Option<SpannedValue<LocalName>>,
        /// Start the workflow with this word as `classification.intent`, if the word follows the mention
        /// (webhook): `@heeler-bot build it` starts the workflow with the intent `build`. Other texts
        /// start `workflow`. Needs `mention` and `workflow`.
        intents: Option<SpannedValue<bool>>,
        /// Also accept events caused by bots (webhook). By default they are ignored, because an
        /// agent's own actions could start it again.
        bots: Option<SpannedValue<bool>>,
        /// Values of the request that are passed to the agent (webhook): a name of your choice and
        /// the path of the value, such as `title: issue.title` or `label: issue.labels.0.name`. By
        /// default the whole request body is passed; for GitHub events, its relevant fields.
        fields: Option<SpannedValue<IndexMap<String, PayloadFieldPath>>>,
        /// Files that start the schedule when they change (watch), or that a push must touch
        /// (webhook): globs such as `src/**/*.rs`, relative to the working directory. A glob that
        /// matches a directory includes everything in it. `.git`, symbolic links to directories and
        /// Heeler's own state directory are never watched. A change starts at most one job. A change starts nothing if it is made while a job of the schedule is active, within
        /// `debounce` after that job ends, or while the daemon is stopping or stopped.
        paths: Option<SpannedValue<GlobList>>,
        /// Files in `paths` that start nothing when they change.
        ignore: Option<SpannedValue<GlobList>>,
        /// Time without changes before the job starts. Defaults to `2s`. Files that change
        /// constantly start the job after ten times this time.
        debounce: Option<SpannedValue<ConfigDuration>>,
        /// Trigger in the list form: `type` with `every` (same as `interval`) or `expression` (same
        /// as `cron`).
        trigger: Option<TriggerKeys>,
        /// Prompt. Defaults to the agent's `default_prompt`.
        prompt: Option<String>,
        /// `false` stops the schedule from starting jobs; it can still be triggered manually.
        enabled: bool = "true",
        /// Session settings of this schedule; they override those of the agent.
        session: Option<SessionKeys>,
        /// herdctl's form of `session: {mode: persistent}`.
        resume_session: bool = "false",
        /// Time zone of `cron`, such as `Europe/Vienna`. Defaults to the agent's time zone, then to
        /// the machine's.
        timezone: Option<ConfigTimeZone>,
        /// Delay each start by a random time up to this, so that many agents do not start at once.
        jitter: Option<SpannedValue<ConfigDuration>>,
        /// Handling of due times that passed while no daemon was running, or while it was suspended
        /// or could not save its state: `skip` them, `run_once` for all of them (the default), or
        /// `run_all`, at most 100.
        missed: Option<MissedRunPolicy>,
        /// Handling of a due time while the previous job is still active: `skip` it (the default)
        /// or `queue` it.
        overlap: Option<OverlapPolicy>,
        /// Time limit of a job of this schedule. Defaults to the agent's `timeout`.
        timeout: Option<ConfigDuration>,
        /// Also write the job's output as text to `jobs/<job>/output.log`.
        output_to_file as "outputToFile": bool = "false",
        /// Source of work of this schedule, instead of the agent's `work_source`.
        work_source: Option<SpannedValue<WorkSource>>,
        /// Queue priority of the schedule's jobs, instead of the agent's `priority`.
        priority: Option<PriorityKey>,
    }
}

/// Checked schedule of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleConfig {
    /// Unique within the agent.
    pub name: String,
    pub trigger: ScheduleTrigger,
    pub prompt: Option<String>,
    /// False if the schedule can be triggered manually only.
    pub enabled: bool,
    pub session: SessionRules,
    /// Time limit of a job.
    pub timeout: Option<ConfigDuration>,
    /// Maximum random delay of a start.
    pub jitter: Option<ConfigDuration>,
    pub missed: MissedRunPolicy,
    pub overlap: OverlapPolicy,
    /// Also write the output as text.
    pub output_to_file: bool,
    pub work_source: Option<WorkSource>,
    /// Queue priority of its jobs; higher starts first.
    pub priority: i32,
    /// Workflow to start instead of prompting the agent.
    pub workflow: Option<ScheduledWorkflow>,
}

/// Workflow that a schedule starts.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledWorkflow {
    pub workflow: LocalName,
    pub inputs: Map<String, Json>,
    /// Runs of one due time; `None` for a single one.
    pub fan_out: Option<CronFanOut>,
}

/// Trigger of a schedule with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleTrigger {
    /// Time since the previous start.
    Interval(ConfigDuration),
    Cron {
        expr: CronExpr,
        /// Time zone; `None` is the machine's.
        zone: Option<ConfigTimeZone>,
    },
    /// Changes of files.
    Watch {
        /// Watched files, relative to the working directory.
        paths: GlobList,
        /// Excluded files.
        ignore: GlobList,
        /// Time without changes before the job starts.
        debounce: ConfigDuration,
    },
    /// HTTP request from outside.
    Webhook(Box<WebhookRules>),
    /// Chat message; no connector exists yet.
    Chat,
}

/// Schedules of an agent as written: by name, or as a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SchedulesKeys(pub(crate) IndexMap<String, SpannedValue<ScheduleKeys>>);

impl ConfigValue for SchedulesKeys {
    fn shape() -> ValueShape {
        let mut item = ScheduleKeys::section();
        // The list form has a key more, so it is another section of the schema.
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
        // A null removes an inherited schedule.
        for (key, value) in node.entries().iter().filter(|(_, value)| !value.is_null()) {
            // The schedule is read even if its name is wrong, to find all faults.
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

/// Checks the name of a schedule. herdctl accepts any name; Heeler accepts only names that are
/// valid everywhere.
fn check_schedule_name(key: &YamlKey, reader: &mut ConfigReader) -> bool {
    let fits = match reader.dialect {
        ConfigDialect::Heeler => {
            key.text.parse::<LocalName>().map(|_| ()).map_err(|error| error.reason)
        }
        // herdctl's files are accepted as they are, within what a terminal and a file can show.
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

/// Converts the list form into the map form and moves the keys of `trigger` into the schedule.
pub(crate) fn normalize_schedules(node: &mut YamlNode, reader: &mut ConfigReader) {
    if let YamlKind::List(items) = &mut node.kind {
        let items = std::mem::take(items);
        let named = items.into_iter().filter_map(|item| take_item_name(item, reader)).collect();
        node.kind = YamlKind::Map(reject_duplicates(named, reader));
    }
    if let YamlKind::Map(entries) = &mut node.kind {
        // Also in the map form, which may have a `trigger` too.
        entries.iter_mut().for_each(|(_, schedule)| flatten_trigger(schedule, reader));
    }
}

fn take_item_name(mut item: YamlNode, reader: &mut ConfigReader) -> Option<(YamlKey, YamlNode)> {
    let YamlKind::Map(entries) = &mut item.kind else {
        return report_expected(reader, &item, "a schedule with a `name`");
    };
    // Removed, because the name becomes the key of the map.
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

/// Keys of `trigger` and their names in the schedule.
const TRIGGER_KEYS: [(&str, &str); 6] = [
    ("type", "type"),
    ("every", "interval"),
    ("expression", "cron"),
    ("paths", "paths"),
    ("ignore", "ignore"),
    ("debounce", "debounce"),
];

/// Moves the keys of `trigger` into the schedule. Unknown keys stay, so that they are reported.
fn flatten_trigger(schedule: &mut YamlNode, reader: &mut ConfigReader) {
    let YamlKind::Map(entries) = &mut schedule.kind else { return };
    let Some(at) = entries.iter().position(|(key, _)| key.text == "trigger") else { return };
    let YamlKind::Map(trigger) = &mut entries[at].1.kind else { return };
    let moved: Vec<(YamlKey, YamlNode)> = trigger
        // Aliases were renamed before, so each key has one spelling.
        .extract_if(.., |(key, _)| TRIGGER_KEYS.iter().any(|(name, _)| *name == key.text))
        .collect();
    if trigger.is_empty() {
        entries.remove(at);
    }
    for (mut key, value) in moved {
        let names = TRIGGER_KEYS.iter().find(|(name, _)| *name == key.text);
        let (_, name) = names.expect("only keys of the list are moved");
        // Neither wins silently: they may differ.
        if entries.iter().any(|(known, _)| known.text == *name) {
            reject_alias_conflict(key.at, &format!("trigger.{}", key.text), name, reader);
            continue;
        }
        key.text = (*name).to_owned();
        entries.push((key, value));
    }
}

/// Settings of an agent that its schedules inherit.
pub(crate) struct AgentScheduleDefaults<'a> {
    pub(crate) prompt: Option<&'a String>,
    pub(crate) session: &'a SessionKeys,
    /// True if the agent's session has a written `mode`.
    pub(crate) names_session_mode: bool,
    pub(crate) timeout: Option<ConfigDuration>,
    pub(crate) timezone: Option<&'a ConfigTimeZone>,
    pub(crate) jitter: Option<ConfigDuration>,
    pub(crate) missed: Option<MissedRunPolicy>,
    pub(crate) overlap: Option<OverlapPolicy>,
    pub(crate) work_source: Option<&'a SpannedValue<WorkSource>>,
    pub(crate) priority: PriorityKey,
}

impl ScheduleConfig {
    /// Returns true if the schedule comes from a cron file, which has a name of its own in the
    /// records. A webhook that starts a workflow is a schedule like others.
    pub fn is_cron_file(&self) -> bool {
        self.workflow.is_some() && !matches!(self.trigger, ScheduleTrigger::Webhook(_))
    }

    /// Returns true if a due time may start several workflow runs.
    pub fn has_fan_out(&self) -> bool {
        self.workflow.as_ref().is_some_and(|start| start.fan_out.is_some())
    }

    /// Checks one schedule. It inherits settings from its agent.
    pub(crate) fn check(
        name: &str,
        keys: &SpannedValue<ScheduleKeys>,
        agent: &AgentScheduleDefaults<'_>,
        reader: &mut ConfigReader,
    ) -> Option<ScheduleConfig> {
        // Kept until the end, so that the other checks still report their faults.
        let trigger = check_trigger(name, keys, agent, reader);
        let keys = &keys.value;
        check_jitter(keys, agent, reader);
        let session = keys.session.as_ref().unwrap_or(agent.session);
        // A `session` of the schedule says it more precisely than herdctl's flag.
        let mode = match keys.resume_session && keys.session.is_none() {
            true => SessionMode::Persistent,
            false => session.mode,
        };
        // Without a mode, herdctl's `timeout` is only the expiry of the agent's session.
        let is_expiry = reader.dialect == ConfigDialect::Herdctl
            && !agent.names_session_mode
            && keys.session.is_none();
        let session_limit = session.job_timeout(mode).filter(|_| !is_expiry);
        // The agent's own time limit has precedence over that of its session.
        let inherited = agent.timeout.or(session_limit);
        let trigger = trigger?;
        // Other triggers bring their own work.
        let is_timed =
            matches!(trigger, ScheduleTrigger::Interval(_) | ScheduleTrigger::Cron { .. });
        let source = keys.work_source.as_ref().or(agent.work_source).filter(|_| is_timed);
        let work_source = source.and_then(|source| check_work_source(source, reader));
        Some(ScheduleConfig {
            name: name.to_owned(),
            trigger,
            prompt: keys.prompt.clone().or_else(|| agent.prompt.cloned()),
            enabled: keys.enabled,
            session: session.to_rules(mode),
            timeout: keys.timeout.or(inherited),
            jitter: keys.jitter.as_ref().map(|jitter| jitter.value).or(agent.jitter),
            missed: keys.missed.or(agent.missed).unwrap_or(MissedRunPolicy::RunOnce),
            overlap: keys.overlap.or(agent.overlap).unwrap_or(OverlapPolicy::Skip),
            output_to_file: keys.output_to_file,
            work_source,
            priority: keys.priority.unwrap_or(agent.priority).get(),
            workflow: keys.workflow.as_ref().map(|workflow| ScheduledWorkflow {
                workflow: workflow.value.clone(),
                inputs: Map::new(),
                fan_out: None,
            }),
        })
    }
}

fn check_trigger(
    name: &str,
    keys: &SpannedValue<ScheduleKeys>,
    agent: &AgentScheduleDefaults<'_>,
    reader: &mut ConfigReader,
) -> Option<ScheduleTrigger> {
    let kind = trigger_type(name, keys, reader)?;
    // Once the type is known, other types' keys are probably leftovers.
    warn_unused(kind, &keys.value, reader);
    // A schedule that would prompt the agent instead does something else than is written.
    if let Some(workflow) = keys.value.workflow.as_ref().filter(|_| kind != ScheduleType::Webhook) {
        let message = format!("a schedule of type `{kind}` cannot start a workflow");
        let fault = reader.error(workflow.at, message).expected("only `type: webhook` can");
        fault.help("a file with `kind: cron` in the workflow directory starts one at given times");
    }
    let ScheduleKeys { kind: written, interval, cron, paths, ignore, debounce, .. } = &keys.value;
    let at = written.as_ref().map_or(keys.at, |written| written.at);
    match (kind, interval, cron, paths) {
        (ScheduleType::Interval, Some(interval), ..) => check_interval(interval, reader),
        (ScheduleType::Cron, _, Some(cron), _) => {
            let zone = keys.value.timezone.clone().or_else(|| agent.timezone.cloned());
            Some(ScheduleTrigger::Cron { expr: cron.value.clone(), zone })
        }
        // An empty list would watch nothing.
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
            // Accepted for compatibility with herdctl's files.
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

/// Warns about keys that belong to another type.
fn warn_unused(kind: ScheduleType, keys: &ScheduleKeys, reader: &mut ConfigReader) {
    let ScheduleKeys { interval, cron, paths, ignore, debounce, .. } = keys;
    let ScheduleKeys { secret_env, events, branches, labels, authors, bots, fields, .. } = keys;
    let ScheduleKeys { associations, mention, .. } = keys;
    // Webhooks use the same key to filter pushes.
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
        (ScheduleType::Webhook, "associations", associations.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "mention", mention.as_ref().map(|key| key.at)),
        (ScheduleType::Webhook, "intents", keys.intents.as_ref().map(|key| key.at)),
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

/// Returns the type as written, or as implied by the keys.
fn trigger_type(
    name: &str,
    keys: &SpannedValue<ScheduleKeys>,
    reader: &mut ConfigReader,
) -> Option<ScheduleType> {
    let ScheduleKeys { kind, interval, cron, paths, .. } = &keys.value;
    // A written type settles which of several keys counts.
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

fn check_jitter(keys: &ScheduleKeys, agent: &AgentScheduleDefaults<'_>, reader: &mut ConfigReader) {
    let Some(interval) = &keys.interval else { return };
    // The agent's jitter was written without this interval in mind, so the interval is shown.
    let own = keys.jitter.as_ref().map(|jitter| (jitter.value, jitter.at));
    let Some((jitter, at)) = own.or(agent.jitter.map(|jitter| (jitter, interval.at))) else {
        return;
    };
    // A longer jitter would delay a start beyond the next due time.
    if jitter >= interval.value {
        let message =
            format!("the jitter {jitter} is not shorter than the interval {}", interval.value);
        reader.error(at, message).expected("the jitter must be shorter");
    }
}
