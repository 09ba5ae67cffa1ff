// Package envsubst puts the environment's values into a text, as Thanos' programs
// do with their configurations.
//
// A text with references of the form $(NAME) comes in, the text with values in
// their place goes out, and a reference to what is not set is an error, since an
// empty key would be found out late. Nothing else is a reference: $NAME and
// ${NAME} stay as they are.
package envsubst

import (
	"fmt"
	"os"
	"regexp"
)

var reference = regexp.MustCompile(`\$\(([a-zA-Z_0-9]+)\)`)

// Expand replaces every $(NAME).
func Expand(text string) (string, error) {
	var unset error
	text = reference.ReplaceAllStringFunc(text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := os.LookupEnv(name)
		if !ok && unset == nil {
			unset = fmt.Errorf("the environment has no %s", name)
		}
		return value
	})
	return text, unset
}
