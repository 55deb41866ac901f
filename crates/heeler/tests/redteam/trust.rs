//! Attacks by a cloned folder: run its commands before a person has agreed.

use crate::fleet::Fleet;

fn a_new_folder_works_without_a_question(fleet: &Fleet) {
    let said = fleet.run(&["trigger", "greeter"]);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
}

attacks![a_new_folder_works_without_a_question];
