//! Errors of the API: a `Status` with code, reason, message and details.
//!
//! One constructor for each of Kubernetes' reasons, with Kubernetes' messages (apimachinery `api/errors`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

use crate::field;

/// The result of an operation that can fail with a [`Status`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An API error. It contains only what the client may see, no internals.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(Box<Status>);

/// The object that an error is about: the plural resource (or kind for `Invalid`), its group and the object's name.
#[derive(Clone, Copy, Debug)]
pub struct ResourceRef<'a> {
    pub group: &'a str,
    /// Plural resource name, such as `pods`.
    pub resource: &'a str,
    pub name: &'a str,
}

impl ResourceRef<'_> {
    /// `pods "web-0"` or `deployments.apps "web"`.
    fn quoted(&self) -> String {
        format!("{} {:?}", qualified(self.group, self.resource), self.name)
    }
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_string()
    } else {
        format!("{resource}.{group}")
    }
}

fn non_empty(s: &str) -> Option<String> {
    (!s.is_empty()).then(|| s.to_string())
}

impl Error {
    /// A failure with the given HTTP code, reason (may be empty) and message.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Error(Box::new(Status {
            code: Some(i32::from(code)),
            message: Some(message.into()),
            reason: non_empty(reason),
            status: Some("Failure".into()),
            ..Status::default()
        }))
    }

    fn with_details(mut self, about: ResourceRef<'_>) -> Self {
        let details = self.0.details.get_or_insert_with(StatusDetails::default);
        details.name = non_empty(about.name);
        details.group = non_empty(about.group);
        details.kind = non_empty(about.resource);
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(about: ResourceRef<'_>, why: &str) -> Self {
        let message = match (about.resource, about.name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", qualified(about.group, about.resource)),
            _ => format!("{} is forbidden: {why}", about.quoted()),
        };
        Self::new(403, "Forbidden", message).with_details(about)
    }

    pub fn not_found(about: ResourceRef<'_>) -> Self {
        Self::new(404, "NotFound", format!("{} not found", about.quoted())).with_details(about)
    }

    pub fn already_exists(about: ResourceRef<'_>) -> Self {
        Self::new(409, "AlreadyExists", format!("{} already exists", about.quoted())).with_details(about)
    }

    /// As [`Error::already_exists`], of a name that the server has generated.
    pub fn generated_name_exists(about: ResourceRef<'_>) -> Self {
        let message = format!(
            "{} already exists, the server was not able to generate a unique name for the object",
            about.quoted()
        );
        let mut error = Self::new(409, "AlreadyExists", message).with_details(about);
        if let Some(details) = &mut error.0.details {
            details.retry_after_seconds = Some(1);
        }
        error
    }

    pub fn conflict(about: ResourceRef<'_>, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {}: {why}", about.quoted());
        Self::new(409, "Conflict", message).with_details(about)
    }

    /// 422 with one cause for each error. `about.resource` is the *kind* here, as in Kubernetes.
    pub fn invalid(about: ResourceRef<'_>, errors: &field::ErrorList) -> Self {
        let message = format!("{} is invalid: {}", about.quoted(), errors);
        let mut error = Self::new(422, "Invalid", message).with_details(about);
        if let Some(details) = &mut error.0.details {
            let causes = errors.iter().map(|e| StatusCause {
                reason: Some(e.cause.reason().into()),
                message: Some(e.error_body()),
                field: Some(e.field.clone()),
            });
            details.causes = Some(causes.collect());
        }
        error
    }

    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Gone", message)
    }

    /// 410 that makes a client's list or watch start again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.0.details = Some(StatusDetails {
            retry_after_seconds: (retry_after_seconds > 0).then_some(retry_after_seconds),
            ..StatusDetails::default()
        });
        error
    }

    pub fn method_not_supported(about: ResourceRef<'_>, verb: &str) -> Self {
        let what = qualified(about.group, about.resource);
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind \"{what}\""),
        )
        .with_details(ResourceRef { name: "", ..about })
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        let mut error = Self::new(500, "InternalError", format!("Internal error occurred: {text}"));
        error.0.details = Some(StatusDetails {
            causes: Some(vec![StatusCause {
                message: Some(text),
                ..StatusCause::default()
            }]),
            ..StatusDetails::default()
        });
        error
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// The status of the response.
    pub fn status(&self) -> &Status {
        &self.0
    }

    /// The status, to be amended (details that only one caller knows).
    pub fn status_mut(&mut self) -> &mut Status {
        &mut self.0
    }

    /// What the details of the status name as causes.
    pub fn causes(&self) -> &[StatusCause] {
        let details = self.0.details.as_ref();
        details.and_then(|d| d.causes.as_deref()).unwrap_or_default()
    }

    /// Whether a cause has this reason (`CauseType`).
    pub fn has_cause(&self, reason: &str) -> bool {
        self.causes()
            .iter()
            .any(|cause| cause.reason.as_deref() == Some(reason))
    }

    /// HTTP code; 500 when the status carries none or one outside of HTTP's range.
    pub fn code(&self) -> u16 {
        self.0
            .code
            .and_then(|c| u16::try_from(c).ok())
            .filter(|c| (100..600).contains(c))
            .unwrap_or(500)
    }

    pub fn reason(&self) -> &str {
        self.0.reason.as_deref().unwrap_or("")
    }

    pub fn message(&self) -> &str {
        self.0.message.as_deref().unwrap_or("")
    }

    pub fn is_not_found(&self) -> bool {
        self.reason() == "NotFound"
    }

    pub fn is_forbidden(&self) -> bool {
        self.reason() == "Forbidden"
    }

    /// The object is invalid: a retry without changes cannot succeed.
    pub fn is_invalid(&self) -> bool {
        self.reason() == "Invalid"
    }

    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// The requested revision is compacted: list again.
    pub fn is_expired(&self) -> bool {
        matches!(self.reason(), "Expired" | "Gone")
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Error(Box::new(status))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_causes_of_its_details() {
        let mut error = Error::too_many_requests("Cannot evict pod", 5);
        assert!(error.causes().is_empty() && !error.has_cause("DisruptionBudget"));
        error.status_mut().details.get_or_insert_default().causes = Some(vec![StatusCause {
            reason: Some("DisruptionBudget".into()),
            ..StatusCause::default()
        }]);
        assert_eq!(error.causes().len(), 1);
        assert!(error.has_cause("DisruptionBudget") && !error.has_cause("SurgeFirst"));
        assert!(Error::unauthorized().causes().is_empty());
    }
}
