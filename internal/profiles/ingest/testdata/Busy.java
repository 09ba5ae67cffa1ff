public class Busy {
    static final Object lock = new Object();
    static volatile Object sink;
    static long spin(long n) { long s = 0; for (long i = 0; i < n; i++) s += i * 31 ^ s >> 3; return s; }
    public static void main(String[] a) throws Exception {
        Thread other = new Thread(() -> { for (int i = 0; i < 40; i++) synchronized (lock) { try { Thread.sleep(30); } catch (InterruptedException e) { } } });
        other.start();
        long end = System.currentTimeMillis() + 2500, sum = 0;
        while (System.currentTimeMillis() < end) {
            sum += spin(3_000_000);
            for (int i = 0; i < 2000; i++) sink = new byte[1024];
            if (other.isAlive()) synchronized (lock) { sum++; }
            java.util.concurrent.locks.LockSupport.parkNanos(25_000_000);
        }
        System.out.println(sum);
    }
}
