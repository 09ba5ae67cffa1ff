// Package hint names command-line flags in errors: those that raise limits, and those with
// values that cannot be used. It also replaces $(NAME) in the texts of flags.
//
// A package with limits has a field Flags in its options and adds Flags.Of to the errors of
// exceeded limits. Package main, which knows the flags, sets the field. The zero value adds
// nothing. An error of Invalid is an error of the command line: package main exits with the code
// of such errors.
package hint

// Flags are the names of flags, such as --query.max-series, by the name of the option that
// they set, such as SeriesMax.
type Flags map[string]string

// Of returns the flag of an option as the end of an error, such as " (--query.max-series)";
// "" if the option has no flag.
func (f Flags) Of(option string) string {
	if flag := f[option]; flag != "" {
		return " (" + flag + ")"
	}
	return ""
}

// FlagError is the error of a flag whose value cannot be used.
type FlagError struct {
	Flag string // without dashes
	Err  error
}

// Invalid returns err as a FlagError of a flag, whose name has no dashes; nil if err is nil.
func Invalid(flag string, err error) error {
	if err == nil {
		return nil
	}
	return &FlagError{Flag: flag, Err: err}
}

// Error returns the flag and the reason: "--web.cors.origin: missing closing )".
func (e *FlagError) Error() string { return "--" + e.Flag + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FlagError) Unwrap() error { return e.Err }
