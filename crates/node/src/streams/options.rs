//! Which streams exec and attach open (`remotecommand.Options` of the kubelet).

/// Which streams a request opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

impl Options {
    /// From the kubelet's query parameters `input`, `output`, `error`, `tty` (each on when `1`). A terminal has no
    /// stderr. `None` if no stream is requested.
    pub fn from_query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut options = Options::default();
        for (name, value) in pairs {
            let on = value == "1";
            match name {
                "input" => options.stdin = on,
                "output" => options.stdout = on,
                "error" => options.stderr = on,
                "tty" => options.tty = on,
                _ => {}
            }
        }
        options.stderr &= !options.tty;
        (options.stdin || options.stdout || options.stderr).then_some(options)
    }
}
