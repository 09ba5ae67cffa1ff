package engine

import "testing"

func TestNotificationsIn_RepeatedOnesCount(t *testing.T) {
	n, err := notificationsIn([]byte(`{"data":{"groups":[{"rules":[{"counts":{"notifications":2,"resends":3}}]}]}}`))
	if err != nil || n != 5 {
		t.Error(n, err)
	}
	if _, err := notificationsIn([]byte(`{"status":"error"}`)); err == nil {
		t.Error("no error without a result")
	}
}
