//! Checks of a cron file: its condition, its inputs and the runs of one due time.
//!
//! Start at [`WorkflowLoader::take_fan_out`].

use serde_json::{Map, Value as Json, json};

use super::inputs;
use super::parse::{LoadedWorkflow, WorkflowLoader};
use crate::discovery::{CronFanOut, DiscoveryKind, DiscoveryRule, FAN_OUT_INPUTS};
use crate::github_event::{AuthorAssociation, TRUSTED_ASSOCIATIONS};
use crate::reader::SourceSpan;
use crate::value::SpannedValue;

/// Days without a change after which an issue is stale, if the cron does not say.
const STALE_DAYS_DEFAULT: u32 = 30;

impl WorkflowLoader<'_> {
    /// Returns the runs of one due time. Takes Last Light's key `discover`, and its settings, out of
    /// the inputs.
    pub(super) fn take_fan_out(
        &mut self,
        each_repo: Option<&SpannedValue<bool>>,
        context: &mut Map<String, Json>,
        at: SourceSpan,
    ) -> Option<Option<CronFanOut>> {
        let can_use_github = self.context.settings.can_use_github;
        let Some(word) = context.remove("discover") else {
            let needs_repos = each_repo.filter(|each| each.value && !can_use_github);
            if let Some(each) = needs_repos {
                let message = "`each_repo` needs access to GitHub".to_owned();
                return self.report_no_github(each.at, message);
            }
            // Last Light starts a cron once for each repository that it manages.
            let is_each = each_repo.map_or(can_use_github, |each| each.value);
            return Some(is_each.then_some(CronFanOut::EachRepo));
        };
        if let Some(each) = each_repo {
            let message = "`each_repo` cannot be combined with `discover`".to_owned();
            self.reader.error(each.at, message).expected("remove it: a search reads all of them");
            return None;
        }
        let kind = word.as_str().and_then(|word| word.parse::<DiscoveryKind>().ok());
        let Some(kind) = kind else {
            let known: Vec<&str> = DiscoveryKind::ALL.iter().map(|kind| kind.as_str()).collect();
            let message = format!("`discover: {word}` is no search that Heeler knows");
            let expected = format!("expected one of: {}", known.join(", "));
            self.reader.error(at, message).expected(expected);
            return None;
        };
        if !can_use_github {
            let message = format!("`discover: {kind}` needs access to GitHub");
            return self.report_no_github(at, message);
        }
        let stale_days = self.take_stale_days(context, at)?;
        let associations = self.take_associations(context, at)?;
        Some(Some(CronFanOut::EachMatch(DiscoveryRule { kind, stale_days, associations })))
    }

    fn report_no_github<T>(&mut self, at: SourceSpan, message: String) -> Option<T> {
        let fault = self.reader.error(at, message).expected("the cron is not started");
        fault.help("set `github` in the fleet file, with `token_env` or `app`, and `repos`");
        None
    }

    fn take_stale_days(&mut self, context: &mut Map<String, Json>, at: SourceSpan) -> Option<u32> {
        let Some(days) = context.remove("stale_days") else { return Some(STALE_DAYS_DEFAULT) };
        let number = days.as_u64().and_then(|days| u32::try_from(days).ok());
        if number.is_none() {
            let message = format!("`stale_days: {days}` is no number of days");
            self.reader.error(at, message).expected("a whole number, such as 30");
        }
        number
    }

    fn take_associations(
        &mut self,
        context: &mut Map<String, Json>,
        at: SourceSpan,
    ) -> Option<Vec<AuthorAssociation>> {
        let Some(written) = context.remove("associations") else {
            return Some(TRUSTED_ASSOCIATIONS.to_vec());
        };
        let words = written.as_array().filter(|words| !words.is_empty());
        let parse = |word: &Json| word.as_str()?.parse::<AuthorAssociation>().ok();
        let parsed = words.and_then(|words| words.iter().map(parse).collect());
        if parsed.is_none() {
            let message = format!("`associations: {written}` names no relations of authors");
            self.reader.error(at, message).expected("a list, such as `[OWNER, MEMBER]` or `[ANY]`");
        }
        parsed
    }

    /// Checks the inputs of a cron with several runs. The other inputs are known when it starts.
    pub(super) fn check_fan_out_inputs(
        &mut self,
        loaded: &LoadedWorkflow,
        context: &Map<String, Json>,
        at: SourceSpan,
    ) -> Option<()> {
        let mut sample = context.clone();
        for name in FAN_OUT_INPUTS {
            let is_declared = loaded.workflow.inputs.contains_key(name);
            if is_declared && !sample.contains_key(name) {
                // A text that can be converted to a number.
                sample.insert(name.to_owned(), json!("1"));
            }
        }
        self.check_cron_inputs(loaded, sample, at).map(drop)
    }

    /// Checks Last Light's `condition`. Returns true for its only form: `unless: webhooksEnabled`.
    pub(super) fn check_condition(
        &mut self,
        condition: Option<&SpannedValue<Json>>,
    ) -> Option<bool> {
        let Some(condition) = condition else { return Some(false) };
        if condition.value == serde_json::json!({ "unless": "webhooksEnabled" }) {
            return Some(true);
        }
        let message = format!("the condition {} is not known", condition.value);
        self.reader.error(condition.at, message).expected("expected `{unless: webhooksEnabled}`");
        None
    }

    pub(super) fn check_cron_inputs(
        &mut self,
        loaded: &LoadedWorkflow,
        context: Map<String, Json>,
        at: SourceSpan,
    ) -> Option<Map<String, Json>> {
        let refuse = |faults: inputs::WorkflowInputError| {
            for fault in faults.0 {
                let expected = format!("inputs of `{}`", loaded.workflow.name);
                self.reader.error(at, fault).expected(expected);
            }
        };
        inputs::resolve_inputs(&loaded.workflow, context).map_err(refuse).ok()
    }
}
