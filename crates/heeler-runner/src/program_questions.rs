//! Open questions of an agent program, for the runtimes that speak JSON-RPC.
//!
//! An agent asks by a request, and waits for its reply. The runtime says what a question is about
//! and how its protocol words a reply. This module applies the verdict of the policy, keeps the
//! questions that wait for a person, and replies to each question once. Start at
//! [`ProgramQuestions`].

use std::collections::HashMap;

use heeler_model::run::QuestionAnswer;
use serde_json::Value as Json;

use crate::json_rpc::RpcId;
use crate::program_policy::ProgramVerdict;
use crate::program_rows as rows;
use crate::runtime::{AgentQuestionKind, RuntimeEffect};

/// Limit on open questions of an agent; further ones are refused.
pub(crate) const OPEN_QUESTIONS_MAX: usize = 256;

/// Reply to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionReply {
    /// Allows the action once. A reply never holds for later questions.
    Allow,
    /// Denies the action, and the turn continues.
    Deny,
    /// Denies the action, and the turn ends.
    DenyAndEnd,
    /// The question is moot, because the turn ends.
    Withdraw,
}

/// Question in the words of a protocol.
pub(crate) trait ProgramQuestion {
    /// Request that asks.
    fn id(&self) -> &RpcId;
    /// Returns the reason that the action cannot be allowed, if so.
    fn allow_refusal(&self) -> Option<&'static str> {
        None
    }
    fn reply(&self, reply: QuestionReply) -> RuntimeEffect;
}

/// Action that a question is about, as people see it.
pub(crate) struct AskedAction {
    pub(crate) name: String,
    pub(crate) input: Json,
}

/// Effect of a verdict or of an answer.
pub(crate) struct QuestionDecision<Q> {
    pub(crate) effects: Vec<RuntimeEffect>,
    /// Question that was allowed.
    pub(crate) allowed: Option<Q>,
    /// Question that was denied, with the reason.
    pub(crate) denied: Option<(Q, String)>,
    /// The person also ends the turn.
    pub(crate) ends_turn: bool,
}

/// Questions that wait for a person, by their IDs.
pub(crate) struct ProgramQuestions<Q> {
    open: HashMap<String, Q>,
}

impl<Q> Default for ProgramQuestions<Q> {
    fn default() -> ProgramQuestions<Q> {
        ProgramQuestions { open: HashMap::new() }
    }
}

impl<Q: ProgramQuestion> ProgramQuestions<Q> {
    pub(crate) fn contains(&self, id: &RpcId) -> bool {
        self.open.contains_key(id.as_str())
    }

    /// Returns true if one more question may wait for a person.
    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < OPEN_QUESTIONS_MAX
    }

    /// Applies the verdict of the policy to a new question.
    pub(crate) fn decide(
        &mut self,
        question: Q,
        action: AskedAction,
        verdict: ProgramVerdict,
    ) -> QuestionDecision<Q> {
        match verdict {
            ProgramVerdict::Allow => allow(question),
            ProgramVerdict::Deny(reason) => {
                let note = format!("{} was denied: {reason}", action.name);
                let effects =
                    vec![rows::notice("denied", &note), question.reply(QuestionReply::Deny)];
                let denied = Some((question, reason));
                QuestionDecision { effects, allowed: None, denied, ends_turn: false }
            }
            ProgramVerdict::AskPerson => {
                let id = question.id().as_str().to_owned();
                let ask = RuntimeEffect::Ask {
                    id: id.clone(),
                    kind: AgentQuestionKind::Permission,
                    tool: action.name,
                    input: action.input,
                    grant: None,
                };
                self.open.insert(id, question);
                QuestionDecision {
                    effects: vec![ask],
                    allowed: None,
                    denied: None,
                    ends_turn: false,
                }
            }
        }
    }

    /// Replies to an open question with a person's answer. Returns `None` if the agent has
    /// withdrawn the question.
    pub(crate) fn answer(
        &mut self,
        ask: &str,
        answer: &QuestionAnswer,
    ) -> Option<QuestionDecision<Q>> {
        let question = self.open.remove(ask)?;
        Some(match answer {
            // The event loop refuses an answer that changes the input. No grant is offered, so an
            // answer never holds for later requests.
            QuestionAnswer::Allow { .. }
            | QuestionAnswer::AllowSession
            | QuestionAnswer::AllowAlways => allow(question),
            QuestionAnswer::Deny { message, interrupt } => {
                let reply =
                    if *interrupt { QuestionReply::DenyAndEnd } else { QuestionReply::Deny };
                let effects = vec![question.reply(reply)];
                let denied = Some((question, message.clone()));
                QuestionDecision { effects, allowed: None, denied, ends_turn: *interrupt }
            }
        })
    }

    /// Replies to every open question that it is moot.
    pub(crate) fn withdraw_all(&mut self) -> Vec<RuntimeEffect> {
        let mut effects = Vec::new();
        for (ask, question) in self.open.drain() {
            effects.push(question.reply(QuestionReply::Withdraw));
            effects.push(RuntimeEffect::Withdraw { ask });
        }
        effects
    }

    /// Closes a question that the agent no longer waits for.
    pub(crate) fn forget(&mut self, ask: &str) -> Option<RuntimeEffect> {
        self.open.remove(ask).map(|_| RuntimeEffect::Withdraw { ask: ask.to_owned() })
    }
}

fn allow<Q: ProgramQuestion>(question: Q) -> QuestionDecision<Q> {
    match question.allow_refusal() {
        None => {
            let effects = vec![question.reply(QuestionReply::Allow)];
            QuestionDecision { effects, allowed: Some(question), denied: None, ends_turn: false }
        }
        Some(reason) => {
            let effects = vec![question.reply(QuestionReply::Deny)];
            let denied = Some((question, reason.to_owned()));
            QuestionDecision { effects, allowed: None, denied, ends_turn: false }
        }
    }
}
