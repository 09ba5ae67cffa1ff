package hint

import (
	"fmt"
	"os"
	"regexp"
)

var reference = regexp.MustCompile(`\$\(([a-zA-Z_0-9]+)\)`)

// Expand replaces every $(NAME) in a configuration by the environment variable, as Thanos does. An unset variable is an
// error, since an empty value would be noticed late. $NAME and ${NAME} are no references and stay unchanged.
func Expand(text string) (string, error) {
	var unset error
	text = reference.ReplaceAllStringFunc(text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := os.LookupEnv(name)
		if !ok && unset == nil {
			unset = fmt.Errorf("environment variable %s is not set", name)
		}
		return value
	})
	return text, unset
}
