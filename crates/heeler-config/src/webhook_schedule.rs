//! Keys of a schedule that belong to the type `webhook`, checked.
//!
//! Start at [`check_webhook`].

use crate::fault::ConfigFault;
use crate::globs::GlobList;
use crate::reader::ConfigReader;
use crate::schedule::{ScheduleKeys, ScheduleTrigger, SchedulesKeys};
use crate::value::SpannedValue;
use crate::webhook::{FIELDS_MAX, WebhookRules};

/// Checks the keys of a webhook.
pub(crate) fn check_webhook(keys: &ScheduleKeys, reader: &mut ConfigReader) -> ScheduleTrigger {
    fn value<T: Clone + Default>(key: Option<&SpannedValue<T>>) -> T {
        key.map(|key| key.value.clone()).unwrap_or_default()
    }
    if let Some(fields) = keys.fields.as_ref().filter(|fields| fields.value.len() > FIELDS_MAX) {
        let message = format!("{} fields are more than {FIELDS_MAX}", fields.value.len());
        reader.error(fields.at, message).expected("fewer fields");
    }
    if let Some(empty) = keys.associations.as_ref().filter(|it| it.value.is_empty()) {
        let message = "an empty list of associations would accept nobody".to_owned();
        reader.error(empty.at, message).expected("at least one, or `ANY`");
    }
    if let Some(mention) = keys.mention.as_ref().filter(|it| !is_login(&it.value)) {
        let message = format!("`{}` is no name of an account", mention.value);
        reader.error(mention.at, message).expected("a login without `@`, such as `heeler-bot`");
    }
    if let Some(SpannedValue { value: true, at, .. }) = &keys.intents
        && (keys.mention.is_none() || keys.workflow.is_none())
    {
        let message = "`intents` needs `mention` and `workflow`".to_owned();
        let expected =
            "the word after the mention chooses a workflow, and `workflow` is for other texts";
        reader.error(*at, message).expected(expected);
    }
    let globs = |key: &Option<SpannedValue<GlobList>>| {
        // An empty list means no condition, not a condition that never holds.
        key.as_ref().map(|globs| globs.value.clone()).filter(|globs| !globs.patterns().is_empty())
    };
    ScheduleTrigger::Webhook(Box::new(WebhookRules {
        secret_env: keys.secret_env.as_ref().map(|name| name.value.clone()),
        events: value(keys.events.as_ref()),
        branches: globs(&keys.branches),
        paths: globs(&keys.paths),
        labels: value(keys.labels.as_ref()),
        authors: value(keys.authors.as_ref()),
        associations: keys.associations.as_ref().map(|it| it.value.clone()),
        mention: keys.mention.as_ref().map(|it| it.value.clone()),
        intents: value(keys.intents.as_ref()),
        bots: value(keys.bots.as_ref()),
        fields: value(keys.fields.as_ref()),
        own_login: None,
    }))
}

/// Returns the workflows that schedules name: the schedule, and the fault if there is no such
/// workflow.
pub(crate) fn workflow_references(
    schedules: &SchedulesKeys,
    reader: &ConfigReader,
) -> Vec<(String, ConfigFault)> {
    let named = schedules.0.iter().filter_map(|(name, keys)| {
        let workflow = keys.value.workflow.as_ref()?;
        let message = format!("there is no workflow `{}`", workflow.value);
        Some((name.clone(), reader.later_error(workflow.at, message)))
    });
    named.collect()
}

/// Returns true if a text can be the login of a GitHub account, with or without the suffix of Apps.
pub(crate) fn is_login(text: &str) -> bool {
    let name = text.strip_suffix("[bot]").unwrap_or(text);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= 100 && name.bytes().all(allowed)
}
