//! Webhook calls that start a workflow.
//!
//! A run is about the issue, pull request or repository that the call names. One run of a workflow is
//! active for a subject; a call meanwhile is answered with that run. Start at
//! [`DispatchTransaction::start_webhook_workflow`].

use std::sync::Arc;

use heeler_config::webhook::WebhookPayload;
use heeler_config::workflow::INTENT_CHARS_MAX;
use heeler_config::{GithubEvent, OverlapPolicy};
use heeler_model::TriggerType;
use heeler_model::timetable::SkipReason;
use serde_json::{Map, Value as Json};

use super::transaction::DispatchTransaction;
use super::webhook::WebhookEndpoint;
use super::workflows::StartedWorkflowRun;
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, WebhookCall, WebhookWorkflowInputs,
};
use crate::dispatch_failure::DispatchFailure;
use crate::workflows::{WorkflowMode, WorkflowRunRequest, WorkflowSubject};

impl StartedWorkflowRun {
    pub(super) fn into_reply(self) -> CommandReply {
        let StartedWorkflowRun { run, status, is_new } = self;
        CommandReply::WorkflowRun { run, status, is_new }
    }
}

impl WebhookEndpoint<'_> {
    /// Returns the inputs and the subject that a request has for the workflow.
    pub(super) fn workflow_inputs(&self, sent: &WebhookPayload<'_>) -> WebhookWorkflowInputs {
        let subject = match (sent.event, sent.json) {
            (Some(name), Some(json)) => {
                let subject = GithubEvent { name, json }.subject();
                WorkflowSubject {
                    owner: subject.owner,
                    repo: subject.repo,
                    issue_number: subject.number,
                    sender: subject.sender,
                }
            }
            _ => WorkflowSubject::default(),
        };
        let login = self.rules.mention.as_ref().filter(|_| self.rules.intents);
        let intent = match (login, sent.event, sent.json) {
            (Some(login), Some(name), Some(json)) => {
                GithubEvent { name, json }.word_after_mention(login)
            }
            _ => None,
        };
        let intent = intent.filter(|word| word.len() <= INTENT_CHARS_MAX).map(str::to_owned);
        WebhookWorkflowInputs { inputs: self.rules.workflow_inputs(sent), subject, intent }
    }

    /// Returns the trigger ID of a run: its subject on GitHub, else the schedule. With `overlap:
    /// queue` each call of a schedule without a subject has its own run.
    fn workflow_trigger_id(&self, workflow: &str, subject: &WorkflowSubject) -> Option<String> {
        let event = heeler_config::EventSubject {
            owner: subject.owner.clone(),
            repo: subject.repo.clone(),
            number: subject.issue_number,
            sender: None,
        };
        event.trigger_id(workflow).or_else(|| match self.schedule.overlap {
            OverlapPolicy::Skip => Some(self.key().workflow_trigger_id()),
            OverlapPolicy::Queue => None,
        })
    }
}

impl DispatchTransaction<'_, '_> {
    /// Starts the workflow of a schedule. Returns `None` if the schedule starts jobs.
    pub(super) fn start_webhook_workflow(
        &mut self,
        endpoint: &WebhookEndpoint<'_>,
        call: &WebhookCall,
    ) -> Result<Option<StartedWorkflowRun>, DispatchFailure> {
        let Some(start) = &endpoint.schedule.workflow else { return Ok(None) };
        let setup = Arc::clone(&self.state.setup);
        let given = call.workflow.clone().unwrap_or_else(|| {
            // A person has sent a file: the rules of the config apply to it too.
            let json = serde_json::from_str(&call.payload).ok();
            let sent = WebhookPayload { event: None, text: &call.payload, json: json.as_ref() };
            endpoint.workflow_inputs(&sent)
        });
        let WebhookWorkflowInputs { mut inputs, subject, intent } = given;
        // The config may have changed since the call was received.
        let intent = intent.filter(|_| endpoint.rules.intents);
        let chosen = intent.and_then(|word| setup.loaded.workflow_with_intent(&word));
        let loaded = match chosen {
            Some(chosen) => chosen,
            None => setup.workflow(start.workflow.as_str())?,
        };
        // Read before undeclared inputs are removed.
        let comment = starting_comment(&inputs);
        // Of the many values of an event, a workflow gets those that it declares.
        let declared = &loaded.workflow.inputs;
        if endpoint.rules.fields.is_empty() && !declared.is_empty() {
            inputs.retain(|name, _| declared.contains_key(name));
        }
        let name = loaded.workflow.name.as_str();
        let request = WorkflowRunRequest {
            workflow: name.to_owned(),
            inputs,
            trigger_id: endpoint.workflow_trigger_id(name, &subject),
            trigger: TriggerType::Webhook,
            mode: WorkflowMode::Real,
            subject: (subject != WorkflowSubject::default()).then(|| Box::new(subject)),
        };
        let started = self.start_workflow_run(request, "a webhook")?;
        if let (Some(comment), true) = (comment, started.is_new) {
            self.acknowledge_comment(&started.run, comment)?;
        }
        Ok(Some(started))
    }

    /// Refuses a call while as many workflow runs have not ended as jobs may wait: a flood of calls
    /// must not fill the database.
    pub(super) fn check_workflow_capacity(
        &self,
    ) -> Result<(), (DaemonCommandError, Option<SkipReason>)> {
        let most = self.state.fleet.rules().queue_max;
        if self.state.fleet.workflow_runs().count() < most {
            return Ok(());
        }
        let message = format!("{most} workflow runs have not ended (`queue.max`)");
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
        let hint = "call again later; heeler workflow runs lists them";
        Err((refused.with_hint(hint), Some(SkipReason::QueueFull)))
    }
}

/// Returns the ID of the comment that an event is about. Comments on code and reviews have other
/// addresses.
fn starting_comment(inputs: &Map<String, Json>) -> Option<u64> {
    let is_comment = inputs.get("event").and_then(Json::as_str) == Some("issue_comment");
    inputs.get("commentId").filter(|_| is_comment)?.as_u64()
}
