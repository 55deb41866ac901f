//! The page where people say who they are.

use maud::{DOCTYPE, Markup, html};

use crate::page_frame::page_head;

/// What the login page shows. It says nothing of who has a password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginView {
    /// The fleet's name.
    pub fleet: String,
    /// Where to go after that.
    pub next: String,
    /// The name that was given, if one was.
    pub user: String,
    /// What was wrong with the last try.
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
                            input type="hidden" name="next" value=(view.next);
                            div.field {
                                label for="user" { "Name" }
                                input #user name="user" value=(view.user) autocomplete="username"
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
                            "No password? Run " code { "heeler open" } " on the machine of the fleet: it gives a link that logs you in."
                        }
                    }
                }
            }
        }
    }
}

/// Returns the page of a one-time link that counted. It goes on by itself: a cookie for this site
/// alone is not sent where another site or program led here.
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
                        p { a.button.primary href=(next) { "Go on" } }
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
