package limit

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// acquire acquires in the background and returns a function that reports whether it has succeeded.
func acquire(ctx context.Context, t *testing.T, l *Limiter, tenant string, n int) (admitted func() bool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		if _, err := l.AcquireN(ctx, tenant, n); err == nil {
			close(done)
		}
	}()
	synctest.Wait()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func hold(t *testing.T, l *Limiter, tenant string, n int) (free func(int)) {
	t.Helper()
	free, err := l.AcquireN(t.Context(), tenant, n)
	checkIs(t, err, nil)
	return free
}

// A small request fits its tenant's limit, but it waits behind a large request that does not. Once the
// large request has left the queue, the small request is admitted without a release.
func TestAcquireN_LeavingRequestAdmitsTheOneBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 10, TenantConcurrencyMax: 4})
		hold(t, l, "a", 3)
		ctx, cancel := context.WithCancel(t.Context())
		large := acquire(ctx, t, l, "a", 2)
		small := acquire(t.Context(), t, l, "a", 1)
		check(t, "large is admitted", large(), false)
		check(t, "small passes it", small(), false)
		cancel()
		check(t, "small is admitted once the large one has left", small(), true)
		check(t, "running", l.running, 4)
	})
}

// A tenant is in the round-robin queue because of its first request, which then leaves. The tenant's
// second request needs more slots than the tenant's limit leaves.
func TestAcquireN_TenantsLimitHoldsForTheRequestBehindOneThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 4, TenantConcurrencyMax: 3})
		freeA, freeB := hold(t, l, "a", 1), hold(t, l, "b", 3)
		ctx, cancel := context.WithCancel(t.Context())
		acquire(ctx, t, l, "a", 1)
		large := acquire(t.Context(), t, l, "a", 3)
		other := acquire(t.Context(), t, l, "c", 1)
		cancel()
		check(t, "large is admitted although its tenant would have four", large(), false)
		freeB(3)
		check(t, "another tenant waits for it", other(), true)
		check(t, "large is admitted although its tenant would have four", large(), false)
		freeA(1)
		check(t, "large is admitted", large(), true)
	})
}

// A second release of the same slot must not remove the tenant, which has a new request by then.
func TestLimiter_LateReleaseDoesNotForgetTheTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 2})
		first := hold(t, l, "a", 1)
		first(1)
		second := hold(t, l, "a", 1)
		first(1)
		check(t, "tenants", len(l.tenants), 1)
		second(0)
		check(t, "running after a release of nothing", l.running, 1)
		second(1)
		check(t, "tenants at the end", len(l.tenants), 0)
	})
}

func TestLimiter_Full(t *testing.T) {
	l := newLimiter(t, Options{ConcurrencyMax: 2})
	check(t, "empty", l.Full(), false)
	free := hold(t, l, "a", 1)
	check(t, "one of two", l.Full(), false)
	hold(t, l, "b", 1)
	check(t, "two of two", l.Full(), true)
	free(1)
	check(t, "one of two again", l.Full(), false)
}

func TestLimiter_RejectionsAreCountedByReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 1, TenantQueueMax: 1, TenantsMax: 2, WaitMax: time.Second})
		free := hold(t, l, "a", 1)
		count := func(what string, queueFull, tenants, canceled, timedOut uint64) {
			t.Helper()
			got := [4]uint64{l.metrics.queueFull.Get(), l.metrics.tenantsFull.Get(), l.metrics.canceled.Get(), l.metrics.timedOut.Get()}
			check(t, what, got, [4]uint64{queueFull, tenants, canceled, timedOut})
		}
		_, err := l.Acquire(t.Context(), "b")
		checkIs(t, err, ErrWait)
		count("after the wait", 0, 0, 0, 1)
		check(t, "in queues", l.metrics.queued.Get(), 0)
		ctx, cancel := context.WithCancel(t.Context())
		acquire(ctx, t, l, "b", 1)
		check(t, "in queues", l.metrics.queued.Get(), 1)
		_, err = l.Acquire(t.Context(), "b")
		checkIs(t, err, ErrQueueFull)
		count("a full queue", 1, 0, 0, 1)
		_, err = l.Acquire(t.Context(), "c")
		checkIs(t, err, ErrTenants)
		count("too many tenants", 1, 1, 0, 1)
		cancel()
		synctest.Wait()
		count("canceled in the queue", 1, 1, 1, 1)
		_, err = l.Acquire(ctx, "b")
		checkIs(t, err, context.Canceled)
		count("canceled before", 1, 1, 2, 1)
		check(t, "running", l.metrics.running.Get(), 1)
		free(1)
		check(t, "running at the end", l.metrics.running.Get(), 0)
		check(t, "in queues at the end", l.metrics.queued.Get(), 0)
	})
}

func TestNew_MetricsAreDescribedUnderTheNamesOfTheirLimiter(t *testing.T) {
	for downstream, names := range map[bool][4]string{
		false: {"ferula_frontend_requests_running", "ferula_frontend_queue_length", "ferula_frontend_queue_wait_seconds", "ferula_frontend_rejected_total"},
		true: {"ferula_frontend_downstream_slots_held", "ferula_frontend_downstream_queue_length", "ferula_frontend_downstream_queue_wait_seconds",
			"ferula_frontend_downstream_rejected_total"},
	} {
		set := instruments.NewSet()
		if _, err := New(Options{Downstream: downstream}, set); err != nil {
			t.Fatal(err)
		}
		help := map[string]string{}
		for _, f := range set.Families() {
			help[f.Name] = f.Help
		}
		check(t, "families", len(help), len(names))
		check(t, "help", help[names[0]], map[bool]string{false: "Admitted requests in progress.", true: "Downstream calls whose response is not yet read to its end."}[downstream])
		seen := map[string]bool{}
		for _, name := range names {
			if help[name] == "" || seen[help[name]] {
				t.Errorf("%s: %q", name, help[name])
			}
			seen[help[name]] = true
		}
	}
}

func TestQuery_LimitsOfOne(t *testing.T) {
	checkIs(t, Query{LengthMax: 1}.CheckRange(0, 1, 1), ErrLimit)
	checkIs(t, Query{LengthMax: time.Millisecond}.CheckRange(0, 1, 1), nil)
	checkIs(t, Query{PointsMax: 1}.CheckRange(0, 10, 10), ErrLimit)
	checkIs(t, Query{PointsMax: 1}.CheckRange(0, 9, 10), nil)
	checkIs(t, Query{PointsMax: 11}.CheckRange(0, 11, 1), ErrLimit)
	checkIs(t, Query{PointsMax: 12}.CheckRange(0, 11, 1), nil)
	checkIs(t, Query{PointsMax: 1}.CheckRange(0, 10, -1), nil)
}

func TestTenants_ValidateNamesTheFlags(t *testing.T) {
	for flag, tenants := range map[string]Tenants{
		"query-frontend.org-id-header":     {Headers: []string{"a", ""}},
		"query-frontend.default-tenant-id": {Headers: []string{"a"}, Default: "a b"},
	} {
		err := tenants.Validate()
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v does not name %s", err, flag)
		}
	}
	checkIs(t, Tenants{Headers: []string{"a", "b"}, Default: "c"}.Validate(), nil)
}

func TestTenants_ErrorsNameTheHeaders(t *testing.T) {
	for want, header := range map[string]http.Header{
		"THANOS-TENANT has 2 values":                      {"Thanos-Tenant": {"a", "b"}},
		"name has 0 bytes, must have 1 to 150":            {"X-Scope-Orgid": {"", ""}},
		`X-Scope-OrgID names "a" and THANOS-TENANT names`: {"X-Scope-Orgid": {"a"}, "Thanos-Tenant": {"b"}},
		"in THANOS-TENANT":                                {"Thanos-Tenant": {"a b"}},
	} {
		_, err := Tenants{}.Of(header)
		checkIs(t, err, ErrTenant)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestError_OfALimitIsOfItsKind(t *testing.T) {
	for _, kind := range []error{ErrQueueFull, ErrTenants, ErrWait} {
		checkIs(t, &Error{kind: kind}, kind)
		checkIs(t, &Error{kind: kind}, ErrLimit)
	}
	checkIs(t, &Error{}, ErrLimit)
	check(t, "a long time", (&Error{Limit: "x", Max: 1<<63 - 1, Unit: "ms"}).Error(), "limit exceeded: x: at most 2562047h47m16.854s")
}
