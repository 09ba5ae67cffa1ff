// Package hint names the command-line flags that raise limits.
//
// A package with limits has a field Flags in its options and adds Flags.Of to the errors of
// exceeded limits. Package main, which knows the flags, sets the field. The zero value adds
// nothing.
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
