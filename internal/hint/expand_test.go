package hint

import "testing"

func TestExpand_UnsetVariableIsAnError(t *testing.T) {
	t.Setenv("FERULA_A", "x$(FERULA_B)")
	got, err := Expand("a: $(FERULA_A) $FERULA_A ${FERULA_A} $() $(")
	if err != nil || got != "a: x$(FERULA_B) $FERULA_A ${FERULA_A} $() $(" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Expand("$(FERULA_NOT_SET_1)"); err == nil || err.Error() != "environment variable FERULA_NOT_SET_1 is not set" {
		t.Error(err)
	}
}
