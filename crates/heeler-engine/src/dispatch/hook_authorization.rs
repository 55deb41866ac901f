//! Authorization of commands that a hook sends: only those that its config lists.

use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobRequest, RunId, TriggerType};

use super::dispatcher::Dispatcher;
use crate::capability::HookGrant;
use crate::command::{DaemonCommand, DaemonCommandError, DaemonCommandErrorKind};

/// Trigger type of jobs that a hook starts.
const HOOK_TRIGGER: &str = "hook";

impl Dispatcher {
    /// Checks a command of a hook against the permissions in its config.
    pub(super) fn authorize_hook(
        &self,
        mut command: DaemonCommand,
        run: RunId,
    ) -> Result<DaemonCommand, DaemonCommandError> {
        let Some(grant) = self.fleet.hook_grants.get(run) else {
            return Err(refusal("the hook has ended".to_owned()));
        };
        command.set_requester(&grant.name());
        let setup = std::sync::Arc::clone(&self.state().setup);
        match &mut command {
            DaemonCommand::Status => {}
            DaemonCommand::Trigger(wanted) => {
                // The name may be short, but the config holds the qualified one.
                wanted.agent = setup.find_agent(wanted.agent.as_str())?.name.clone();
                check_trigger(wanted, &grant)?;
                wanted.trigger = TriggerType::from_word(HOOK_TRIGGER);
                wanted.parent = None;
                wanted.attended = false;
            }
            DaemonCommand::Cancel { .. } if grant.permissions.cancel => {}
            DaemonCommand::Say { .. } if grant.permissions.message => {}
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
