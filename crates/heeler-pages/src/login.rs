//! The login page.

use maud::{DOCTYPE, Markup, html};

use crate::page_frame::page_head;

/// Data of the login page. It reveals nothing about existing users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginView {
    /// Name of the fleet.
    pub fleet: String,
    /// Path to open after the login.
    pub next: String,
    /// User name from the last attempt, if any.
    pub user: String,
    /// Error of the last attempt.
    pub problem: Option<String>,
}

/// Returns the login page; its form is sent to `POST /login`.
pub fn page(view: &LoginView) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (page_head("Log in", &view.fleet)) }
            body {
                main.centre {
                    div.card {
                        span.brand { "Heeler" }
                        h1 { "Log in" }
                        @if let Some(problem) = &view.problem {
                            p.banner.bad role="alert" { (problem) }
                        }
                        form.stack method="post" action="/login" {
                            // The server accepts only a path of its own, here and when the form
                            // comes back.
                            input type="hidden" name="next" value=(view.next);
                            div.field {
                                label for="user" { "Name" }
                                input #user name="user" value=(view.user) autocomplete="username"
                                    // Phones would capitalise the name.
                                    autocapitalize="none" spellcheck="false" required;
                            }
                            div.field {
                                label for="password" { "Password" }
                                input #password type="password" name="password"
                                    autocomplete="current-password" required;
                            }
                            button.button.primary { "Log in" }
                        }
                        p.note {
                            "No password? Run " code { "heeler open" } " on the fleet's machine: it prints a link that logs you in."
                        }
                    }
                }
            }
        }
    }
}

/// Returns the page after a successful one-time link. It redirects with a meta refresh, because
/// browsers do not send a SameSite cookie on a redirect that another site or program started.
pub fn logged_in_page(fleet: &str, next: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta http-equiv="refresh" content={ "0;url=" (next) };
                (page_head("Logged in", fleet))
            }
            body {
                main.centre {
                    div.card {
                        span.brand { "Heeler" }
                        h1 { "You are logged in" }
                        p { a.button.primary href=(next) { "Continue" } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_shown_as_text() {
        let view = LoginView {
            fleet: "Heeler".to_owned(),
            next: "/jobs?a=\"b\"".to_owned(),
            user: "<script>".to_owned(),
            problem: Some("no & never".to_owned()),
        };
        let page = page(&view).into_string();
        assert!(page.contains("value=\"&lt;script&gt;\""), "{page}");
        assert!(page.contains("value=\"/jobs?a=&quot;b&quot;\""), "{page}");
        assert!(page.contains("no &amp; never"), "{page}");
    }
}
