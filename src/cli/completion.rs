//! `informerd completion`, and the candidates that its scripts request: of the command line by itself, and of the server by name.

mod candidates;

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write},
};

use clap::{Args, Command};
use clap_complete::{
    Shell,
    engine::{ArgValueCompleter, complete},
    env::Shells,
};

use self::candidates::Words;
use super::{failure::Failure, print::write_all};

pub(super) const EXAMPLES: &str = "\
Examples:
  source <(informerd completion bash)
  informerd completion zsh > \"${fpath[1]}/_informerd\"
  informerd completion fish > ~/.config/fish/completions/informerd.fish
  informerd completion powershell | Out-String | Invoke-Expression

Names of resources, objects, namespaces, indexes, views and contexts are those of the server that the command line names, if it \
answers within 0.3 seconds.";

/// Flags of `informerd completion`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompletionFlags {
    /// Shell that the script is for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Variable by which a script requests candidates.
const VARIABLE: &str = "INFORMERD_COMPLETE";
/// Script of bash. Its own words are not those of the command: they end at `=` and `:`. So it passes the line, and the last word
/// of the candidates begins where bash's does.
const BASH: &str = r#"_informerd() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <(INFORMERD_COMPLETE=bash informerd -- "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o nosort -o bashdefault -o default -F _informerd informerd 2>/dev/null || complete -o bashdefault -o default -F _informerd informerd
"#;

/// End of the script of zsh. Its first completion loads a file of `fpath`, and takes its result.
const ZSH_AUTOLOADED: &str = r#"if [[ ${funcstack[1]-} == _informerd ]]; then _clap_dynamic_completer_informerd "$@"; fi
"#;

/// Prints the script.
pub(super) fn run(flags: &CompletionFlags) -> Result<(), Failure> {
    let mut script = Vec::new();
    match Shells::builtins().completer(&flags.shell.to_string()) {
        _ if flags.shell == Shell::Bash => script.extend_from_slice(BASH.as_bytes()),
        Some(shell) => shell.write_registration(VARIABLE, "informerd", "informerd", "informerd", &mut script)?,
        None => {}
    }
    if flags.shell == Shell::Zsh {
        script.extend_from_slice(ZSH_AUTOLOADED.as_bytes());
    }
    Ok(write_all(&script)?)
}

/// Writes candidates if a script requests them, and returns true then. What fails is silent: a user is typing.
pub(super) fn answer(command: fn() -> Command) -> bool {
    let Some(shell) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return false };
    let arguments: Vec<OsString> = env::args_os().skip_while(|argument| argument != "--").skip(1).collect();
    let mut out = Vec::new();
    let written = match shell.to_str() {
        Some("bash") => for_bash(command, &arguments, &mut out),
        Some(shell) => for_shell(command, shell, arguments, &mut out),
        None => Ok(()),
    };
    if written.is_ok() {
        drop(io::stdout().write_all(&out));
    }
    true
}

fn for_shell(command: fn() -> Command, shell: &str, mut arguments: Vec<OsString>, out: &mut Vec<u8>) -> io::Result<()> {
    // fish passes the words up to the cursor.
    let index = env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
    let index = index.unwrap_or(arguments.len().saturating_sub(1));
    // A cursor behind the last word.
    arguments.resize(arguments.len().max(index + 1), OsString::new());
    let mut command = with_candidates(command, &arguments[..index]);
    match Shells::builtins().completer(shell) {
        Some(shell) => shell.write_complete(&mut command, arguments, None, out),
        None => Ok(()),
    }
}

fn for_bash(command: fn() -> Command, arguments: &[OsString], out: &mut Vec<u8>) -> io::Result<()> {
    let text = |at: usize| arguments.get(at).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let (line, breaks) = (text(0), text(1));
    let words = words(&line);
    let last = words.last().map(String::as_str).unwrap_or_default();
    let kept = last.rfind(|c| matches!(c, '=' | ':') && breaks.contains(c)).map_or(0, |at| at + 1);
    let index = words.len().saturating_sub(1);
    let mut command = with_candidates(command, &words[..index]);
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    for candidate in complete(&mut command, words, index, None)? {
        let value = candidate.get_value().to_string_lossy();
        writeln!(out, "{}", escaped(value.get(kept..).unwrap_or_default()))?;
    }
    Ok(())
}

/// Returns a word for the line of a shell, of which nothing is expanded: the name of an object may be `$(command)`.
fn escaped(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    word.chars().flat_map(|c| (!is_plain(c)).then_some('\\').into_iter().chain([c])).collect()
}

/// Splits a line as a shell does, up to the cursor at its end: the last word may be empty, or its quote open.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote, mut is_escaped) = (vec![String::new()], None, false);
    for c in line.chars() {
        let Some(last) = words.last_mut() else { break };
        match (c, quote) {
            _ if is_escaped => {
                is_escaped = false;
                last.push(c);
            }
            ('\\', None | Some('"')) => is_escaped = true,
            ('\'' | '"', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            (' ' | '\t', None) if last.is_empty() => {}
            (' ' | '\t', None) => words.push(String::new()),
            _ => last.push(c),
        }
    }
    words
}

/// Returns the command with the candidates of each argument that names something of a server. `before` are the words before the
/// one that is completed.
fn with_candidates<T: AsRef<OsStr>>(command: fn() -> Command, before: &[T]) -> Command {
    let words = Words::new(command(), before.iter().map(|word| word.as_ref().to_owned()).collect());
    command().mut_subcommands(|subcommand| {
        if subcommand.get_arguments().all(|argument| argument.get_id() != "context") {
            return subcommand;
        }
        subcommand.mut_args(|argument| match words.of(argument.get_id().as_str()) {
            Some(candidates) => argument.add(ArgValueCompleter::new(candidates)),
            None => argument,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_a_shell_splits_it() {
        for (line, expected) in [
            ("informerd ", &["informerd", ""][..]),
            ("informerd  list po", &["informerd", "list", "po"]),
            ("informerd list -l 'a in (b, c)' ", &["informerd", "list", "-l", "a in (b, c)", ""]),
            ("informerd list \"a\\\"b c", &["informerd", "list", "a\"b c"]),
            ("informerd --server=http://h:1 x\\ y", &["informerd", "--server=http://h:1", "x y"]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }
}
