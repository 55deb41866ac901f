//! Authorization of commands that a hook sends: only those that its config lists.

use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobRequest, PromptAuthor, RunId, TriggerType};

use super::dispatcher::Dispatcher;
use crate::capability::HookGrant;
use crate::command::{DaemonCommand, DaemonCommandError, DaemonCommandErrorKind};
use crate::prepare::reads_marks;

/// Trigger type of jobs that a hook starts.
const HOOK_TRIGGER: &str = "hook";

impl Dispatcher {
    /// Checks a command of a hook against the permissions in its config. Its texts may come from the
    /// agent whose job it follows, so they are marked as texts of that agent.
    pub(super) fn authorize_hook(
        &self,
        mut command: DaemonCommand,
        run: RunId,
    ) -> Result<DaemonCommand, DaemonCommandError> {
        let Some(grant) = self.fleet.hook_grants.get(run) else {
            return Err(refusal("the hook has ended".to_owned()));
        };
        command.set_requester(&grant.name());
        let author = PromptAuthor { agent: grant.agent.to_string(), job: grant.job.clone() };
        let setup = std::sync::Arc::clone(&self.state().setup);
        match &mut command {
            DaemonCommand::Status => {}
            DaemonCommand::Trigger(wanted) => {
                // The name may be short, but the config holds the qualified one.
                let agent = setup.find_agent(wanted.agent.as_str())?;
                wanted.agent = agent.name.clone();
                check_trigger(wanted, &grant)?;
                // The usual session may be one that the agent keeps for people.
                wanted.session = SessionChoice::Fresh;
                self.limit_choices(wanted, &author)?;
                // The mark is a part of the prompt on record: the job has no parent from which a
                // retry could learn the author.
                if let Some(prompt) = &mut wanted.prompt
                    // An empty prompt is refused as such.
                    && !prompt.trim().is_empty()
                    && reads_marks(agent)
                {
                    *prompt = author.mark(prompt);
                }
                wanted.prompt_by = None;
                wanted.trigger = TriggerType::from_word(HOOK_TRIGGER);
                wanted.parent = None;
                wanted.attended = false;
            }
            DaemonCommand::Cancel { .. } if grant.permissions.cancel => {}
            DaemonCommand::Say { job, text, .. } if grant.permissions.message => {
                *text = self.mark_message(job, &author, std::mem::take(text));
            }
            _ => return Err(refusal(format!("{} may not do this", grant.name()))),
        }
        Ok(command)
    }
}

/// Refuses a job that the hook's config does not allow, and one in a session of somebody else.
fn check_trigger(wanted: &JobRequest, grant: &HookGrant) -> Result<(), DaemonCommandError> {
    if !grant.permissions.trigger.contains(&wanted.agent) {
        return Err(refusal(format!("{} may not start jobs of {}", grant.name(), wanted.agent)));
    }
    let is_own_session = matches!(wanted.session, SessionChoice::Usual | SessionChoice::Fresh);
    if !is_own_session || wanted.channel.is_some() {
        return Err(refusal(format!("{} may not choose the session of a job", grant.name())));
    }
    Ok(())
}

fn refusal(message: String) -> DaemonCommandError {
    DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
        .with_hint("a hook may do only what the key `allow` in its config lists")
}
