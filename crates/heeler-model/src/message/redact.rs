//! Redaction of secrets in a message, before any part of it is truncated, counted or stored.

use super::{AgentMessage, ApiError, MessageBody, SubagentTask, TurnResult};
use crate::redact::SecretRedactor;

impl AgentMessage {
    /// Redacts all texts of the message.
    ///
    /// A delta stays unchanged: it may hold only a fragment of a secret. Use
    /// [`SecretRedactor::stream`] for deltas.
    pub fn redact(&mut self, redactor: &SecretRedactor) {
        // The ID is printed in one spelling later: find a secret in any other spelling now.
        let is_secret = |uuid: &uuid::Uuid| {
            let forms = [uuid.hyphenated().to_string(), uuid.simple().to_string()];
            let upper = forms.each_ref().map(|form| form.to_uppercase());
            forms.iter().chain(&upper).any(|form| redactor.contains_known_secret(form))
        };
        // The row then gets an ID of its own.
        if !redactor.knows_nothing() {
            self.uuid = self.uuid.take().filter(|uuid| !is_secret(uuid));
        }
        self.session.iter_mut().for_each(|id| redactor.redact_string(id));
        self.parent_tool_use_id.iter_mut().for_each(|id| redactor.redact_string(id));
        redactor.redact_object(&mut self.fields);
        self.body.redact(redactor);
    }
}

impl MessageBody {
    fn redact(&mut self, redactor: &SecretRedactor) {
        let all = |texts: &mut [&mut String]| {
            texts.iter_mut().for_each(|text| redactor.redact_string(text));
        };
        let some = |text: &mut Option<String>| {
            text.iter_mut().for_each(|text| redactor.redact_string(text));
        };
        match self {
            MessageBody::Init(init) => {
                some(&mut init.version);
                some(&mut init.model);
            }
            MessageBody::Assistant(said) => {
                redactor.redact_object(&mut said.message);
                // All fields are named, so that a new one cannot be forgotten here.
                said.api_error.iter_mut().for_each(|ApiError { code, kind, status: _ }| {
                    some(code);
                    some(kind);
                });
            }
            MessageBody::User(told) => redactor.redact_object(&mut told.message),
            // It is redacted as a stream, together with the fragments around it.
            MessageBody::Delta { text: _ } => {}
            MessageBody::Result(result) => result.redact(redactor),
            MessageBody::Retry(retry) => some(&mut retry.error),
            MessageBody::RateLimit(limit) => some(&mut limit.status),
            MessageBody::Task(SubagentTask { subtype, id, kind, background: _, status }) => {
                all(&mut [subtype, id]);
                some(kind);
                some(status);
            }
            MessageBody::BackgroundTasks { running } => {
                running.iter_mut().for_each(|id| redactor.redact_string(id));
            }
            MessageBody::CommandLifecycle { command, state } => all(&mut [command, state]),
            MessageBody::Error { message, code } => {
                redactor.redact_string(message);
                some(code);
            }
            MessageBody::Unknown { kind, text } => all(&mut [kind, text]),
            MessageBody::Malformed { reason, text } => all(&mut [reason, text]),
            MessageBody::System { subtype: kind } | MessageBody::Ignored { kind } => {
                redactor.redact_string(kind);
            }
        }
    }
}

impl TurnResult {
    fn redact(&mut self, redactor: &SecretRedactor) {
        redactor.redact_string(&mut self.subtype);
        self.errors.iter_mut().for_each(|error| redactor.redact_string(error));
        for (id, tool) in &mut self.denied_calls {
            redactor.redact_string(id);
            redactor.redact_string(tool);
        }
        for text in [
            &mut self.text,
            &mut self.stop_reason,
            &mut self.terminal_reason,
            &mut self.api_error_type,
        ] {
            text.iter_mut().for_each(|text| redactor.redact_string(text));
        }
    }
}
